// Optimizer configurations kept under an integer chosen by the caller: the part of the native
// interface that other code of this kind offers as create/destroy functions.

#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "checks.h"

namespace deepspeed {

// A process has a handful of optimizers, so a list searched from its end will do.
template <class Config>
class ConfigRegistry {
 public:
  // Creating an id anew replaces its configuration.
  void create(int64_t id, const Config& config) {
    const std::lock_guard<std::mutex> guard(mutex_);
    erase(id);
    entries_.push_back({id, config});
  }

  // Destroying an unknown id is no error: finalizers may run twice, or after a failed creation.
  void destroy(int64_t id) {
    const std::lock_guard<std::mutex> guard(mutex_);
    erase(id);
  }

  Config find(const char* op, int64_t id) {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (size_t i = entries_.size(); i-- > 0;) {
      if (entries_[i].id == id) return entries_[i].config;
    }
    fail(op, "there is no optimizer with id %lld; call its create function first",
         static_cast<long long>(id));
  }

 private:
  struct Entry {
    int64_t id;
    Config config;
  };

  void erase(int64_t id) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].id != id) continue;
      entries_[i] = entries_.back();
      entries_.pop_back();
      return;
    }
  }

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace deepspeed
