// Operators deepspeed_cpu_adam::*: argument checks and constants around the kernels.
//
// They are registered for every device: the check for CPU tensors then gives a message that tells
// what to do, and tracing with tensors that have no memory needs no second implementation.

#include "cpu_adam.h"

#include <torch/csrc/stable/library.h>

#include <array>
#include <cmath>
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

struct AdamConfig {
  bool adamw_mode;
};

ConfigRegistry<AdamConfig>& registry() {
  static ConfigRegistry<AdamConfig> instance;
  return instance;
}

constexpr std::array<const char*, kAdamStreams> kParamLists = {"params", "grads", "exp_avgs",
                                                               "exp_avg_sqs"};
constexpr std::array<const char*, kAdamStreams> kParamNames = {"params", "grads", "exp_avg",
                                                               "exp_avg_sq"};

struct Hyperparameters {
  double lr, beta1, beta2, eps, weight_decay;
  bool adamw_mode, bias_correction;
};

void check(const char* op, int64_t step, const Hyperparameters& h) {
  check_step(op, step);
  check_coefficient(op, "beta1", h.beta1);
  check_coefficient(op, "beta2", h.beta2);
}

AdamConstants constants_for(int64_t step, const Hyperparameters& h) {
  const double t = static_cast<double>(step);
  const double bias1 = h.bias_correction ? 1.0 - std::pow(h.beta1, t) : 1.0;
  const double bias2 = h.bias_correction ? 1.0 - std::pow(h.beta2, t) : 1.0;
  const double decay = h.adamw_mode ? 1.0 - h.lr * h.weight_decay : 1.0;
  AdamConstants c;
  c.beta1 = static_cast<float>(h.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
  c.inverse_beta1 = static_cast<float>(1.0 / h.beta1);
  c.beta2 = static_cast<float>(h.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
  c.inverse_beta2 = static_cast<float>(1.0 / h.beta2);
  c.eps = static_cast<float>(h.eps);
  c.l2 = h.adamw_mode ? 0.0f : static_cast<float>(h.weight_decay);
  c.decay = static_cast<float>(decay);
  c.inverse_decay = static_cast<float>(1.0 / decay);
  c.step_size = static_cast<float>(h.lr / bias1);
  c.inverse_root_bias2 = static_cast<float>(1.0 / std::sqrt(bias2));
  return c;
}

constexpr char kCreateAdam[] =
    "create_adam(int optimizer_id, float lr, float beta1, float beta2, float eps, "
    "float weight_decay, bool adamw_mode, bool should_log) -> int";
int64_t create_adam(int64_t optimizer_id, double lr, double beta1, double beta2, double eps,
                    double weight_decay, bool adamw_mode, bool should_log) {
  check("create_adam", 1, {lr, beta1, beta2, eps, weight_decay, adamw_mode, true});
  registry().create(optimizer_id, {adamw_mode});
  if (should_log) {
    std::printf(
        "cpu_adam: optimizer %lld uses %s kernels; lr=%g, betas=(%g, %g), eps=%g, "
        "weight_decay=%g, adamw_mode=%d\n",
        static_cast<long long>(optimizer_id), simd_name(current_simd()), lr, beta1, beta2, eps,
        weight_decay, adamw_mode ? 1 : 0);
    std::fflush(stdout);
  }
  return 0;
}

constexpr char kDestroyAdam[] = "destroy_adam(int optimizer_id) -> int";
int64_t destroy_adam(int64_t optimizer_id) {
  registry().destroy(optimizer_id);
  return 0;
}

constexpr char kAdamUpdate[] =
    "adam_update(int optimizer_id, int step, float lr, float beta1, float beta2, float eps, "
    "float weight_decay, bool bias_correction, Tensor(a!) params, Tensor grads, "
    "Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq) -> int";
int64_t adam_update(int64_t optimizer_id, int64_t step, double lr, double beta1, double beta2,
                    double eps, double weight_decay, bool bias_correction, const Tensor& params,
                    const Tensor& grads, const Tensor& exp_avg, const Tensor& exp_avg_sq) {
  constexpr const char* kOp = "adam_update";
  const AdamConfig config = registry().find(kOp, optimizer_id);
  const Hyperparameters h = {
      lr, beta1, beta2, eps, weight_decay, config.adamw_mode, bias_correction};
  check(kOp, step, h);
  if (is_meta(params.get())) return 0;
  SegmentList<kAdamStreams> segments(kOp, kParamNames);
  segments.add_one({params.get(), grads.get(), exp_avg.get(), exp_avg_sq.get()}, -1);
  segments.run(adam_step_kernel(current_simd(), constants_for(step, h)));
  return 0;
}

constexpr char kAdamRollback[] =
    "adam_rollback(int optimizer_id, int step, float lr, float beta1, float beta2, float eps, "
    "float weight_decay, bool bias_correction, Tensor(a!) params, Tensor grads, "
    "Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq) -> int";
// Returns -1, leaving everything as it is, where a step can't be undone: 16-bit tensors have
// rounded the difference away, and a factor of 0 has erased the former value.
int64_t adam_rollback(int64_t optimizer_id, int64_t step, double lr, double beta1, double beta2,
                      double eps, double weight_decay, bool bias_correction, const Tensor& params,
                      const Tensor& grads, const Tensor& exp_avg, const Tensor& exp_avg_sq) {
  constexpr const char* kOp = "adam_rollback";
  const AdamConfig config = registry().find(kOp, optimizer_id);
  const Hyperparameters h = {
      lr, beta1, beta2, eps, weight_decay, config.adamw_mode, bias_correction};
  check(kOp, step, h);
  if (is_meta(params.get())) return 0;
  SegmentList<kAdamStreams> segments(kOp, kParamNames);
  segments.add_one({params.get(), grads.get(), exp_avg.get(), exp_avg_sq.get()}, -1);
  const AdamConstants constants = constants_for(step, h);
  if (!segments.all_f32() || constants.beta1 == 0.0f || constants.beta2 == 0.0f ||
      constants.decay == 0.0f) {
    return -1;
  }
  segments.run(adam_rollback_kernel(current_simd(), constants));
  return 0;
}

constexpr char kAdamStep[] =
    "adam_step(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs, int step, float lr, float beta1, float beta2, float eps, "
    "float weight_decay, bool adamw_mode, bool bias_correction) -> ()";
void adam_step(const TensorList& params, const TensorList& grads, const TensorList& exp_avgs,
               const TensorList& exp_avg_sqs, int64_t step, double lr, double beta1, double beta2,
               double eps, double weight_decay, bool adamw_mode, bool bias_correction) {
  constexpr const char* kOp = "adam_step";
  const Hyperparameters h = {lr, beta1, beta2, eps, weight_decay, adamw_mode, bias_correction};
  check(kOp, step, h);
  if (params.all_meta()) return;
  SegmentList<kAdamStreams> segments(kOp, kParamLists);
  segments.add({&params, &grads, &exp_avgs, &exp_avg_sqs});
  segments.run(adam_step_kernel(current_simd(), constants_for(step, h)));
}

constexpr char kSimdLevel[] = "simd_level() -> str";
std::string simd_level() { return simd_name(current_simd()); }

}  // namespace
}  // namespace deepspeed

STABLE_TORCH_LIBRARY(deepspeed_cpu_adam, m) {
  using namespace deepspeed;
  m.def(kCreateAdam).def(kDestroyAdam).def(kAdamUpdate).def(kAdamRollback);
  m.def(kAdamStep).def(kSimdLevel);
}

STABLE_TORCH_LIBRARY_IMPL(deepspeed_cpu_adam, CompositeExplicitAutograd, m) {
  using namespace deepspeed;
  m.impl("create_adam", boxed<&create_adam, kCreateAdam>());
  m.impl("destroy_adam", boxed<&destroy_adam, kDestroyAdam>());
  m.impl("adam_update", boxed<&adam_update, kAdamUpdate>());
  m.impl("adam_rollback", boxed<&adam_rollback, kAdamRollback>());
  m.impl("adam_step", boxed<&adam_step, kAdamStep>());
  m.impl("simd_level", boxed<&simd_level, kSimdLevel>());
}
