"""Pixel operations of the tools: segmentation, properties, OCR, tracking, zoom.

The operations take arrays and know nothing about the scene. They use scikit-image, SciPy and an ONNX text recogniser.
(OpenCV, a dependency of rapidocr, is never imported.)
"""
