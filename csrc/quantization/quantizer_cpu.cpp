// Quantization on the CPU, group by group. Elements are widened to float32 in blocks that stay in
// the L1 cache, so that the formulas of rounding.h run over plain arrays, which compilers
// vectorize.
//
// Memory traffic per element: quantizing reads it twice and writes its code once.

#include <algorithm>

#include "float_conversion.h"
#include "quantizer.h"
#include "rounding.h"
#include "simd.h"

namespace deepspeed {
namespace {

constexpr int64_t kBlock = 512;

// Elements of any type, read and written as float32.
class Elements {
 public:
  Elements(FloatType type, const void* data)
      : type_(type),
        data_(static_cast<char*>(const_cast<void*>(data))),
        conversion_(type == FloatType::f32 ? Conversion{} : conversion(type, current_simd())) {}

  void read(int64_t begin, float* to, int64_t n) const {
    if (type_ == FloatType::f32) {
      std::copy_n(reinterpret_cast<const float*>(data_) + begin, n, to);
    } else {
      conversion_.widen(reinterpret_cast<const uint16_t*>(data_) + begin, to, n);
    }
  }
  void write(int64_t begin, const float* from, int64_t n) const {
    if (type_ == FloatType::f32) {
      std::copy_n(from, n, reinterpret_cast<float*>(data_) + begin);
    } else {
      conversion_.narrow(from, reinterpret_cast<uint16_t*>(data_) + begin, n);
    }
  }

 private:
  FloatType type_;
  char* data_;
  Conversion conversion_;
};

// Calls f(begin, n) for the blocks of `size` elements.
template <class F>
void for_blocks(int64_t size, F&& f) {
  for (int64_t begin = 0; begin < size; begin += kBlock) f(begin, std::min(kBlock, size - begin));
}

// The statistic of the group that read(begin, to, n) reads.
template <class Statistic, class Read>
Statistic statistic_of(int64_t size, Read&& read) {
  Statistic statistic;
  float block[kBlock];
  for_blocks(size, [&](int64_t begin, int64_t n) {
    read(begin, block, n);
    for (int64_t i = 0; i < n; ++i) statistic.add(block[i]);
  });
  return statistic;
}

// What `from` holds at elements [begin, begin + n) of `group`.
void read_numbers(const Quantized& from, int64_t group, int64_t begin, float* to, int64_t n) {
  const float* params = from.params + group * (from.symmetric ? 1 : 2);
  const float step = params[0], offset = from.symmetric ? 0.0f : params[1];
  const int64_t first = group * from.group_size + begin;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = first + i;
    int code = from.data[from.bits == 8 ? at : at / 2];
    if (from.bits == 4) code = at % 2 == 0 ? code >> 4 : static_cast<int8_t>(code << 4) >> 4;
    to[i] = static_cast<float>(code) * step + offset;
  }
}

// Codes of `n` numbers from element `first` of the output on, an even one if they are of 4 bits.
void write_codes(const Quantized& to, int64_t first, const float* codes, int64_t n) {
  if (to.bits == 8) {
    for (int64_t i = 0; i < n; ++i) to.data[first + i] = static_cast<int8_t>(codes[i]);
    return;
  }
  for (int64_t i = 0; i < n; i += 2) {
    const int high = static_cast<int>(codes[i]), low = static_cast<int>(codes[i + 1]);
    to.data[(first + i) / 2] = static_cast<int8_t>(((high & 15) << 4) | (low & 15));
  }
}

// Quantizes one group, which read(begin, to, n) reads, as group `group` of the output.
template <class Scale, class Read>
void quantize_group_with(const Quantized& to, int64_t group, const ErrorFeedback& error,
                         Read&& read) {
  const Elements errors(error.type, error.data);
  const int64_t first = group * to.group_size;
  const auto read_sum = [&](int64_t begin, float* sum, int64_t n) {
    read(begin, sum, n);
    if (error.data == nullptr) return;
    float block[kBlock];
    errors.read(first + begin, block, n);
    for (int64_t i = 0; i < n; ++i) sum[i] += block[i];
  };
  const auto statistic = statistic_of<typename Scale::Statistic>(to.group_size, read_sum);
  const Scale scale(statistic, Levels(to.bits));
  scale.write(to.params + group * Scale::kParams);
  const float beta = static_cast<float>(error.beta), rest = static_cast<float>(1.0 - error.beta);
  for_blocks(to.group_size, [&](int64_t begin, int64_t n) {
    float sums[kBlock], codes[kBlock];
    read_sum(begin, sums, n);
    for (int64_t i = 0; i < n; ++i) codes[i] = scale.shifted_code(sums[i]) - kIntegers;
    write_codes(to, first + begin, codes, n);
    if (error.data == nullptr) return;
    float block[kBlock];
    errors.read(first + begin, block, n);
    for (int64_t i = 0; i < n; ++i) {
      block[i] = beta * block[i] + rest * (sums[i] - scale.number(codes[i]));
    }
    errors.write(first + begin, block, n);
  });
}

template <class Read>
void quantize_group(const Quantized& to, int64_t group, const ErrorFeedback& error, Read&& read) {
  if (to.symmetric) {
    quantize_group_with<SymmetricScale>(to, group, error, read);
  } else {
    quantize_group_with<AsymmetricScale>(to, group, error, read);
  }
}

// Rounds one group in place; round(x, index) is the formula.
template <class Round>
void round_group(const Elements& elements, int64_t first, int64_t size, Round&& round) {
  for_blocks(size, [&](int64_t begin, int64_t n) {
    float block[kBlock];
    elements.read(first + begin, block, n);
    for (int64_t i = 0; i < n; ++i) block[i] = round(block[i], first + begin + i);
    elements.write(first + begin, block, n);
  });
}

template <class Formula>
void fake_quantize_group(const FakeQuantizeArguments& a, const Elements& elements, int64_t first) {
  const auto statistic = statistic_of<typename Formula::Statistic>(
      a.group_size,
      [&](int64_t begin, float* to, int64_t n) { elements.read(first + begin, to, n); });
  const Formula formula(statistic, Levels(a.bits));
  if (a.seed == nullptr) {
    round_group(elements, first, a.group_size,
                [&](float x, int64_t) { return formula.rounded(x); });
    return;
  }
  const int64_t seed = *a.seed;
  round_group(elements, first, a.group_size,
              [&](float x, int64_t index) { return formula.rounded(x, uniform_of(seed, index)); });
}

}  // namespace

void quantize_on_cpu(const QuantizeArguments& a, int64_t first, int64_t last) {
  const Elements input(a.type, a.input);
  for (int64_t group = first; group < last; ++group) {
    const int64_t start = group * a.output.group_size;
    quantize_group(a.output, a.order(group), a.error,
                   [&](int64_t begin, float* to, int64_t n) { input.read(start + begin, to, n); });
  }
}

void reduce_on_cpu(const ReduceArguments& a, int64_t first, int64_t last) {
  const int64_t in_size = a.input.group_size, groups_of_part = a.input.groups / a.parts;
  for (int64_t group = first; group < last; ++group) {
    const int64_t start = group * a.output.group_size;
    const auto read = [&](int64_t begin, float* to, int64_t n) {
      std::fill_n(to, n, 0.0f);
      for (int64_t part = 0; part < a.parts; ++part) {
        // A block of the output can lie across several groups of the input.
        for (int64_t done = 0; done < n;) {
          const int64_t at = start + begin + done;
          const int64_t now = std::min(n - done, in_size - at % in_size);
          float block[kBlock];
          read_numbers(a.input, part * groups_of_part + at / in_size, at % in_size, block, now);
          for (int64_t i = 0; i < now; ++i) to[done + i] += block[i];
          done += now;
        }
      }
    };
    quantize_group(a.output, group, a.error, read);
  }
}

void dequantize_on_cpu(const DequantizeArguments& a, int64_t first, int64_t last) {
  const Elements output(a.type, a.output);
  for (int64_t group = first; group < last; ++group) {
    for_blocks(a.input.group_size, [&](int64_t begin, int64_t n) {
      float block[kBlock];
      read_numbers(a.input, group, begin, block, n);
      output.write(group * a.input.group_size + begin, block, n);
    });
  }
}

void dequantize_unsigned_on_cpu(const DequantizeUnsignedArguments& a, int64_t first, int64_t last) {
  const Elements scales(FloatType::f16, a.scale), minima(FloatType::f16, a.minimum);
  const Elements output(FloatType::f16, a.output);
  for (int64_t group = first; group < last; ++group) {
    float scale, minimum;
    scales.read(group, &scale, 1);
    minima.read(group, &minimum, 1);
    for_blocks(a.group_size, [&](int64_t begin, int64_t n) {
      float block[kBlock];
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = group * a.group_size + begin + i;
        int code = a.data[a.bits == 8 ? at : at / 2];
        if (a.bits == 4) code = at % 2 == 0 ? code >> 4 : code & 15;
        block[i] = static_cast<float>(code) / scale + minimum;
      }
      output.write(group * a.group_size + begin, block, n);
    });
  }
}

void fake_quantize_on_cpu(const FakeQuantizeArguments& a, int64_t first, int64_t last) {
  const Elements elements(a.type, a.data);
  for (int64_t group = first; group < last; ++group) {
    if (a.symmetric) {
      fake_quantize_group<SymmetricFake>(a, elements, group * a.group_size);
    } else {
      fake_quantize_group<AsymmetricFake>(a, elements, group * a.group_size);
    }
  }
}

}  // namespace deepspeed
