// Operators deepspeed_fused_lamb::*: argument checks around the kernels.
//
// They are registered for every device: the check for GPU tensors then gives a message that tells
// what to do, and tracing with tensors that have no memory needs no second implementation.

#include "fused_lamb.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>

#include "checks.h"
#include "cuda_tensor_table.h"
#include "registration.h"
#include "tensor_list.h"

namespace deepspeed {
namespace {

using torch::stable::Tensor;

void check_types(const char* op, const TensorTableBuilder<kLambStreams>& table, bool copies) {
  const FloatType param = table.type(kLambParam), grad = table.type(kLambGrad);
  const bool narrow = param == FloatType::f32 && grad != FloatType::f64;
  if (grad != param && !narrow) {
    fail(op,
         "gradients are neither of the parameters' dtype nor 16-bit beside float32 parameters; "
         "convert them");
  }
  const FloatType state = param == FloatType::f64 ? FloatType::f64 : FloatType::f32;
  if (table.type(kLambExpAvg) != state || table.type(kLambExpAvgSq) != state) {
    fail(op, "states are not float32 (float64 beside float64 parameters); convert them");
  }
  if (copies && table.type(kLambCopy) != grad) {
    fail(op, "copies are not of the gradients' dtype; convert them");
  }
}

void run(const char* op, const TensorList& params, const TensorList& grads,
         const TensorList& exp_avgs, const TensorList& exp_avg_sqs, const TensorList& copies,
         const Tensor& coefficients, const LambOptions& options, const Tensor* lr,
         const Tensor* step, const Tensor* grad_scale, const Tensor* found_inf) {
  check_coefficient(op, "beta1", options.beta1);
  check_coefficient(op, "beta2", options.beta2);
  if (!(options.grad_scale != 0.0)) {
    fail(op, "grad_scale is %g; gradients are divided by it", options.grad_scale);
  }
  if (params.all_meta() || params.empty()) return;
  TensorTableBuilder<kLambStreams> table(
      op, {"params", "grads", "exp_avgs", "exp_avg_sqs", "copies"}, /*keep_empty=*/true);
  table.add({&params, &grads, &exp_avgs, &exp_avg_sqs, copies.empty() ? nullptr : &copies});
  check_types(op, table, !copies.empty());
  const int32_t device = table.device();
  const Argument argument{op, "coefficients", -1};
  check_cuda(coefficients.get(), argument);
  if (check_gpu_float(coefficients.get(), argument) != FloatType::f32 ||
      get(&aoti_torch_get_numel, coefficients.get()) != table.size() ||
      !get(&aoti_torch_is_contiguous, coefficients.get()) ||
      device_index_of(coefficients.get()) != device) {
    argument.fail("is not a contiguous float32 tensor with an element for each parameter");
  }
  const DeviceValues values = device_values(op, device, lr, step, grad_scale, found_inf);
  const FloatType type = table.type(kLambParam), grad = table.type(kLambGrad);
  const auto* rows = table.rows(lamb_chunk(type, grad));
  const torch::stable::accelerator::DeviceGuard guard(device);
  const Workspace workspace(lamb_workspace(table.size(), table.chunks()), device);
  auto* out = static_cast<float*>(get(&aoti_torch_get_data_ptr, coefficients.get()));
  check_launch(op, launch_lamb(type, grad, rows, table.size(), table.chunks(), options, values, out,
                               workspace.data(), device, current_cuda_stream(op, device)));
}

constexpr char kLambStep[] =
    "lamb_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] copies, Tensor(e!) coefficients, int step, float lr, "
    "float beta1, float beta2, float eps, float weight_decay, float max_coeff, float min_coeff, "
    "float grad_scale, Tensor? device_grad_scale, bool eps_inside_sqrt, "
    "bool bias_correction) -> ()";
void lamb_step(const TensorList& params, const TensorList& grads, const TensorList& exp_avgs,
               const TensorList& exp_avg_sqs, const TensorList& copies, const Tensor& coefficients,
               int64_t step, double lr, double beta1, double beta2, double eps, double weight_decay,
               double max_coeff, double min_coeff, double grad_scale,
               const std::optional<Tensor>& device_grad_scale, bool eps_inside_sqrt,
               bool bias_correction) {
  constexpr const char* kOp = "lamb_step";
  check_step(kOp, step);
  run(kOp, params, grads, exp_avgs, exp_avg_sqs, copies, coefficients,
      {lr, beta1, beta2, eps, weight_decay, max_coeff, min_coeff, grad_scale,
       static_cast<double>(step), eps_inside_sqrt, bias_correction},
      nullptr, nullptr, pointer_to(device_grad_scale), nullptr);
}

constexpr char kLambStepOnDevice[] =
    "lamb_step_on_device(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] copies, Tensor(e!) coefficients, Tensor(f!) step, "
    "Tensor lr, float beta1, float beta2, float eps, float weight_decay, float max_coeff, "
    "float min_coeff, float grad_scale, Tensor? device_grad_scale, Tensor? found_inf, "
    "bool eps_inside_sqrt, bool bias_correction) -> ()";
void lamb_step_on_device(const TensorList& params, const TensorList& grads,
                         const TensorList& exp_avgs, const TensorList& exp_avg_sqs,
                         const TensorList& copies, const Tensor& coefficients, const Tensor& step,
                         const Tensor& lr, double beta1, double beta2, double eps,
                         double weight_decay, double max_coeff, double min_coeff, double grad_scale,
                         const std::optional<Tensor>& device_grad_scale,
                         const std::optional<Tensor>& found_inf, bool eps_inside_sqrt,
                         bool bias_correction) {
  run("lamb_step_on_device", params, grads, exp_avgs, exp_avg_sqs, copies, coefficients,
      {0.0, beta1, beta2, eps, weight_decay, max_coeff, min_coeff, grad_scale, 0.0, eps_inside_sqrt,
       bias_correction},
      &lr, &step, pointer_to(device_grad_scale), pointer_to(found_inf));
}

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_fused_lamb, m) {
  using namespace deepspeed;
  m.def(kLambStep).def(kLambStepOnDevice);
}

STABLE_TORCH_LIBRARY_IMPL(deepspeed_fused_lamb, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("lamb_step", boxed<&lamb_step, kLambStep>());
  m.impl("lamb_step_on_device", boxed<&lamb_step_on_device, kLambStepOnDevice>());
}
