import argparse

import pytest
import torch

from benchmarks import gpu

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU on this machine"),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of exporting and of building engines
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_every_figure_is_measured_or_says_why_not(device: str) -> None:
    parser = argparse.ArgumentParser()
    gpu.add_arguments(parser)
    engines = ["eager", "ort-cpu", "trt" if device == "cuda" else "ort-cuda"]
    words = ["--device", device, "--networks", "cpu", "--engines", *engines, "--seconds", "0.05", "--batch", "2"]
    result = gpu.run(parser.parse_args(words))
    (found,) = result["networks"].values()
    acting = found["chunks_per_s_b1"]
    assert set(acting) == set(engines)
    assert acting["eager"] > 1
    assert acting["ort-cpu"] > 1
    if device == "cpu":
        assert acting["ort-cuda"].startswith("not measured: ")
    assert found["chunks_per_s_b64"] > acting["eager"], "64 in one pass are quicker than one by one"
    assert 0 < found["refit_s"] < 60
    assert 0 < found["learner_tflops"] < 2 * max(result["matrix_tflops"].values())
    assert result["world_model"] > 1
    assert "| cpu | 0.6 M | " in gpu.table({**result, "command": "python -m benchmarks gpu"})


@pytest.mark.slow
def test_a_backbone_of_the_true_size_has_as_many_parameters(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("transformers", reason="a pretrained backbone needs the extra 'vlm'")
    with torch.device("meta"):
        model = gpu.make_network("450M", tmp_path_factory.mktemp("backbone"))
    assert 400e6 < sum(parameter.numel() for parameter in model.parameters()) < 500e6
