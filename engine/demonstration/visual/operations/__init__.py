"""The tools' work on pixels: segmenting, naming properties, reading, tracking, zooming.

Everything here takes arrays and knows nothing of how the picture was made; scikit-image, SciPy and an ONNX text
recogniser do the work. (OpenCV, which rapidocr brings along, is never imported.)
"""
