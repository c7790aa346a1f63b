"""What only a GPU can show of the quantizer: streams, graphs, sizes, and agreement with the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.ops.quantizer.reference import check_codes, quotients, unpack

F16 = torch.float16


@pytest.fixture(scope="session")
def op() -> object:
    from deepspeed.ops.op_builder import QuantizerBuilder

    return QuantizerBuilder().load()


@pytest.mark.parametrize("size", [64, 1000, 4096, 40_000])
def test_cpu_and_gpu_agree(op, size):
    x = torch.randn(7, size, dtype=F16)
    for bits in (4, 8):
        for kind in (op.Symmetric, op.Asymmetric):
            q, params = op.quantize(x, 7, bits, kind)
            on_gpu, gpu_params = op.quantize(x.cuda(), 7, bits, kind)
            torch.testing.assert_close(gpu_params.cpu(), params, rtol=1e-6, atol=0)
            check_codes(on_gpu.cpu(), quotients(x, params), bits)
            assert (unpack(on_gpu.cpu(), bits) == unpack(q, bits)).double().mean() > 0.999
    for symmetric in (True, False):
        rounded = [x.float(), x.float().cuda()]
        for side in rounded:
            seed = torch.tensor([99], device=side.device)
            op._ops.fake_quantize(side, 7, 8, symmetric, seed)
        torch.testing.assert_close(rounded[1].cpu(), rounded[0], rtol=1e-5, atol=1e-6)


def test_tensors_of_two_devices_are_refused(op):
    q, params = op.quantize(torch.randn(4, 64).cuda(), 4, 8, op.Symmetric)
    with pytest.raises(RuntimeError, match="params is on another device"):
        op.dequantize(q, params.cpu(), 4, 8, op.Symmetric)


def test_no_call_waits_and_a_graph_draws_anew_at_each_replay(op):
    x = torch.randn(64, 256, device="cuda", dtype=F16)
    work = x.clone()
    op.fake_quantize(work, 64, 4, True, True)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        op.quantize(x, 64, 8, op.Asymmetric)
        op.fake_quantize(work, 64, 4, True, True)
        op.quantize(torch.empty(1, 100_000, device="cuda", dtype=F16), 1, 8, op.Asymmetric)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work.copy_(x)
        op.fake_quantize(work, 64, 4, True, True)
        q, params = op.quantize(x, 64, 8, op.Symmetric)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(work.clone())
    assert not torch.equal(*results)
    wanted = op.quantize(x, 64, 8, op.Symmetric)
    assert torch.equal(q, wanted[0]) and torch.equal(params, wanted[1])


def test_work_goes_to_the_current_stream(op):
    stream = torch.cuda.Stream()
    x = torch.zeros(64, 4096, device="cuda", dtype=F16)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(2.0)
        q, _ = op.quantize(x, 64, 8, op.Symmetric)
    stream.synchronize()
    assert (q == 127).all()


def test_more_than_2_to_the_31_elements(op):
    numel = 2**31 + 64
    x = torch.ones(numel, device="cuda", dtype=F16)
    x[-64:] = torch.linspace(-2.0, 2.0, 64)
    q, params = op.quantize(x, numel // 64, 8, op.Symmetric)
    assert (params[:-1] == 1 / 128).all() and params[-1] == 2 / 128
    assert q[-64] == -128 and q[-1] == 127 and q[0] == 127
    back = op.dequantize(q, params, numel // 64, 8, op.Symmetric)
    torch.testing.assert_close(back[-64:], x[-64:], rtol=0, atol=0.02)
    del back, q, params
    op.ds_quantize_fp16(x, 1, 8)
    assert x[-64] == -2.0 or (x[-64] + 2).abs() < 0.02
    assert ((x[:-64] - 1).abs() < 0.02).all()
