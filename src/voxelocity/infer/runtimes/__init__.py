"""Ways to run a network on windows: torch itself, its compilers, ONNX Runtime, OpenVINO, TensorRT."""
