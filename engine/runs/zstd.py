"""Zstandard from the standard library (Python 3.14) or from its backport."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError, ZstdFile, get_frame_info
    from compression.zstd import compress as zstd_compress
else:
    from backports.zstd import ZstdDecompressor, ZstdError, ZstdFile, get_frame_info
    from backports.zstd import compress as zstd_compress

__all__ = ["ZstdDecompressor", "ZstdError", "ZstdFile", "get_frame_info", "zstd_compress"]
