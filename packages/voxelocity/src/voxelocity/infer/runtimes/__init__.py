"""Ways to run a network on windows: torch itself, its compilers, ONNX Runtime, OpenVINO, TensorRT.

A runtime's module declares all of it as one `Runtime`, with the files of its exports; `table` lists them. `contract`
says what each guarantees (`testing.runtime_contract` tests it), `auto` chooses by measurement, `of_model` gives a model
in one of them. `native` is torch itself; `program` traces a network, for `aot_inductor`, `onnxruntime` and
`openvino`. These modules and `tensorrt` import no library before a network is loaded.
"""
