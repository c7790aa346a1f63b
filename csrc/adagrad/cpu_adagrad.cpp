// Operators deepspeed_cpu_adagrad::*: argument checks and constants around the kernel.
//
// They are registered for every device: the check for CPU tensors then gives a message that tells
// what to do, and tracing with tensors that have no memory needs no second implementation.

#include "cpu_adagrad.h"

#include <torch/csrc/stable/library.h>

#include <array>
#include <cstdio>
#include <string>

#include "checks.h"
#include "config_registry.h"
#include "cpu_multi_tensor.h"
#include "registration.h"
#include "simd.h"
#include "tensor_list.h"

namespace deepspeed {
namespace {

using torch::stable::Tensor;

// Every hyperparameter is passed to each update; the registry only tells known ids from others.
struct AdagradConfig {};

ConfigRegistry<AdagradConfig>& registry() {
  static ConfigRegistry<AdagradConfig> instance;
  return instance;
}

AdagradConstants constants_for(double lr, double eps, double weight_decay) {
  return {static_cast<float>(lr), static_cast<float>(eps), static_cast<float>(weight_decay)};
}

constexpr char kCreateAdagrad[] =
    "create_adagrad(int optimizer_id, float lr, float eps, float weight_decay, bool should_log) "
    "-> int";
int64_t create_adagrad(int64_t optimizer_id, double lr, double eps, double weight_decay,
                       bool should_log) {
  registry().create(optimizer_id, {});
  if (should_log) {
    std::printf("cpu_adagrad: optimizer %lld uses %s kernels; lr=%g, eps=%g, weight_decay=%g\n",
                static_cast<long long>(optimizer_id), simd_name(current_simd()), lr, eps,
                weight_decay);
    std::fflush(stdout);
  }
  return 0;
}

constexpr char kDestroyAdagrad[] = "destroy_adagrad(int optimizer_id) -> int";
int64_t destroy_adagrad(int64_t optimizer_id) {
  registry().destroy(optimizer_id);
  return 0;
}

constexpr char kAdagradUpdate[] =
    "adagrad_update(int optimizer_id, int step, float lr, float eps, float weight_decay, "
    "Tensor(a!) params, Tensor grads, Tensor(b!) exp_avg_sq) -> int";
int64_t adagrad_update(int64_t optimizer_id, int64_t step, double lr, double eps,
                       double weight_decay, const Tensor& params, const Tensor& grads,
                       const Tensor& exp_avg_sq) {
  constexpr const char* kOp = "adagrad_update";
  registry().find(kOp, optimizer_id);
  check_step(kOp, step);
  if (is_meta(params.get())) return 0;
  SegmentList<kAdagradStreams> segments(kOp, {"params", "grads", "exp_avg_sq"});
  segments.add_one({params.get(), grads.get(), exp_avg_sq.get()}, -1);
  segments.run(adagrad_kernel(current_simd(), constants_for(lr, eps, weight_decay)));
  return 0;
}

constexpr char kAdagradStep[] =
    "adagrad_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg_sqs, int step, "
    "float lr, float eps, float weight_decay) -> ()";
void adagrad_step(const TensorList& params, const TensorList& grads, const TensorList& exp_avg_sqs,
                  int64_t step, double lr, double eps, double weight_decay) {
  constexpr const char* kOp = "adagrad_step";
  check_step(kOp, step);
  if (params.all_meta()) return;
  SegmentList<kAdagradStreams> segments(kOp, {"params", "grads", "exp_avg_sqs"});
  segments.add({&params, &grads, &exp_avg_sqs});
  segments.run(adagrad_kernel(current_simd(), constants_for(lr, eps, weight_decay)));
}

constexpr char kSimdLevel[] = "simd_level() -> str";
std::string simd_level() { return simd_name(current_simd()); }

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_cpu_adagrad, m) {
  using namespace deepspeed;
  m.def(kCreateAdagrad).def(kDestroyAdagrad).def(kAdagradUpdate).def(kAdagradStep);
  m.def(kSimdLevel);
}

STABLE_TORCH_LIBRARY_IMPL(deepspeed_cpu_adagrad, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("create_adagrad", boxed<&create_adagrad, kCreateAdagrad>());
  m.impl("destroy_adagrad", boxed<&destroy_adagrad, kDestroyAdagrad>());
  m.impl("adagrad_update", boxed<&adagrad_update, kAdagradUpdate>());
  m.impl("adagrad_step", boxed<&adagrad_step, kAdagradStep>());
  m.impl("simd_level", boxed<&simd_level, kSimdLevel>());
}
