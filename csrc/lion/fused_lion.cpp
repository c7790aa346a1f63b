// Operators deepspeed_fused_lion::*: argument checks around the kernels.
//
// They are registered for every device: the check for GPU tensors then gives a message that tells
// what to do, and tracing with tensors that have no memory needs no second implementation.

#include "fused_lion.h"

#include <torch/csrc/stable/library.h>

#include "checks.h"
#include "cuda_tensor_table.h"
#include "registration.h"
#include "tensor_list.h"

namespace deepspeed {
namespace {

constexpr char kLionStep[] =
    "lion_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, float lr, float beta1, "
    "float beta2, float weight_decay) -> ()";
void lion_step(const TensorList& params, const TensorList& grads, const TensorList& exp_avgs,
               double lr, double beta1, double beta2, double weight_decay) {
  constexpr const char* kOp = "lion_step";
  check_coefficient(kOp, "beta1", beta1);
  check_coefficient(kOp, "beta2", beta2);
  if (params.all_meta()) return;
  TensorTableBuilder<kFusedLionStreams> table(kOp, {"params", "grads", "exp_avgs"});
  table.add({&params, &grads, &exp_avgs});
  if (table.empty()) return;
  const FloatType type = table.type(kFusedLionParam), state = table.type(kFusedLionExpAvg);
  check_optimizer_types(kOp, type, table.type(kFusedLionGrad), state);
  const auto* rows = table.rows(fused_lion_chunk(type, state));
  const int32_t device = table.device();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const Workspace workspace(fused_lion_workspace(table.size(), table.chunks()), device);
  check_launch(kOp, launch_fused_lion(type, state, rows, table.size(), table.chunks(),
                                      {lr, beta1, beta2, weight_decay}, workspace.data(), device,
                                      current_cuda_stream(kOp, device)));
}

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_fused_lion, m) { m.def(deepspeed::kLionStep); }

STABLE_TORCH_LIBRARY_IMPL(deepspeed_fused_lion, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("lion_step", boxed<&lion_step, kLionStep>());
}
