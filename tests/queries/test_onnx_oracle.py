import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.session import QuerySession
from tests.queries.functions import WIDTH, Functions

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def attention_model(path, kind, tokens="tokens", width=WIDTH):
    """One head as a graph of ONNX operators, built without any exporter."""
    from onnx import TensorProto, helper, numpy_helper

    functions = Functions(0)
    element = TensorProto.DOUBLE if kind is np.float64 else TensorProto.FLOAT
    constants = [
        numpy_helper.from_array(functions.W.astype(kind), "W"),
        numpy_helper.from_array(functions.v[:, None].astype(kind), "v"),
        numpy_helper.from_array(np.array([-1], dtype=np.int64), "minus"),
    ]
    nodes = [
        helper.make_node("Gather", ["X", "minus"], ["last"], axis=0),
        helper.make_node("Transpose", ["last"], ["column"], perm=[1, 0]),
        helper.make_node("MatMul", ["W", "column"], ["asked"]),
        helper.make_node("MatMul", ["X", "asked"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=0),
        helper.make_node("MatMul", ["X", "v"], ["values"]),
        helper.make_node("Mul", ["weights", "values"], ["terms"]),
        helper.make_node("ReduceSum", ["terms"], ["answer"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("X", element, [tokens, width])],
        [helper.make_tensor_value_info("answer", element, [])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))


@pytest.mark.parametrize(
    ("kind", "arithmetic", "least"),
    [(np.float64, Arithmetic.FLOAT64, 40), (np.float32, Arithmetic.FLOAT32, 12)],
)
def test_recovery_from_an_onnx_file(tmp_path, kind, arithmetic, least):
    from fiberscope.queries.onnx_oracle import OnnxOracle

    attention_model(tmp_path / "head.onnx", kind)
    oracle = OnnxOracle(tmp_path / "head.onnx")
    assert (oracle.width, oracle.arithmetic) == (WIDTH, arithmetic)
    found = recover_attention(QuerySession(oracle), Request(heads=1))
    truth = Functions(0).W.astype(kind).astype(np.float64)
    error = np.linalg.norm(found.heads.W[0] - truth) / np.linalg.norm(truth)
    assert error <= 2.0 ** -found.estimate.precision.W[0] <= 2.0**-least


def test_models_that_do_not_fit(tmp_path):
    from fiberscope.queries.onnx_oracle import OnnxOracle

    path = tmp_path / "head.onnx"
    attention_model(path, np.float32, tokens=5)
    with pytest.raises(InputError, match="exactly 5 tokens"):
        OnnxOracle(path)
    attention_model(path, np.float32, width="d")
    with pytest.raises(InputError, match="give --width"):
        OnnxOracle(path)
    assert OnnxOracle(path, WIDTH).width == WIDTH
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="no ONNX model"):
        OnnxOracle(path)
    with pytest.raises(InputError, match="cannot be read"):
        OnnxOracle(tmp_path / "none.onnx")
