"""Ways to run a network on windows: torch itself, its compilers, ONNX Runtime, OpenVINO, TensorRT.

`contract` says what each guarantees (`testing.runtime_contract` tests it), `table` lists them, `auto` chooses by
measurement, `of_model` gives a model in one of them. `native` is torch itself, `program` a network without Python;
`onnxruntime`, `openvino` and `tensorrt` are the only users of their libraries.
"""
