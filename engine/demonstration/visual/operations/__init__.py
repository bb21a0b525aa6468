"""The tools' work on pixels: segmenting, naming properties, reading, tracking, zooming.

The operations take arrays and know nothing of the scene. scikit-image, SciPy and an ONNX text recogniser do the
work. (OpenCV, which rapidocr depends on, is never imported.)
"""
