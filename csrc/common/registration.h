// boxed<&fn, kSchema>(): like TORCH_BOX, but refuses at compile time what would go wrong silently,
// and compiles in half the time because no tuples are instantiated.
//
// Arguments cross the stable ABI as 64-bit words that each side reinterprets. A C++ parameter of
// type float or int32_t, or one whose type differs from the schema's, receives garbage without any
// error. Here the C++ signature is compared with the schema while compiling:
//
//   constexpr char kScale[] = "scale(Tensor(a!) x, float factor) -> ()";
//   STABLE_TORCH_LIBRARY(my_op, m) { m.def(kScale); }
//   STABLE_TORCH_LIBRARY_IMPL(my_op, CPU, m) { m.impl("scale", boxed<&scale, kScale>()); }

#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace deepspeed {
namespace registration {

// Reads a schema from left to right.
class SchemaReader {
 public:
  constexpr explicit SchemaReader(std::string_view schema) : text_(schema) {
    skip_past('(');  // the operator's name
  }

  constexpr void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  constexpr bool take(std::string_view word) {
    skip_spaces();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  // Alias annotations such as (a!) follow a base type and don't change how it is passed.
  constexpr void skip_alias() {
    if (at_ < text_.size() && text_[at_] == '(') skip_past(')');
  }

  // From behind a parameter's type, where a space must follow (or else the type goes on, as in
  // Tensor[]), to behind its comma, or to the closing parenthesis.
  constexpr bool take_name() {
    if (at_ >= text_.size() || text_[at_] != ' ') return false;
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != ')') ++at_;
    take(",");
    take("*,");
    return true;
  }

  constexpr bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }

 private:
  constexpr void skip_past(char end) {
    while (at_ < text_.size() && text_[at_] != end) ++at_;
    ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// How T is spelled in a schema. Types without a specialization are not passed faithfully.
template <class T>
struct SchemaType {
  static constexpr bool kPassedFaithfully = false;
  static constexpr bool read(SchemaReader&) { return false; }
};

// How a parameter of type T is taken from the stack. Types that are cheaper to take over than what
// torch's headers offer define a static `take`, see tensor_list.h.
template <class T, class = void>
struct Taker {
  static T take(StableIValue value) { return torch::stable::detail::to<T>(value); }
};
template <class T>
struct Taker<T, std::void_t<decltype(T::take(StableIValue{}))>> {
  static T take(StableIValue value) { return T::take(value); }
};

template <class T>
constexpr bool read_base(SchemaReader& reader, std::string_view word) {
  if (!reader.take(word)) return false;
  reader.skip_alias();
  return true;
}

template <>
struct SchemaType<double> {
  static constexpr bool kPassedFaithfully = true;
  static constexpr bool read(SchemaReader& r) { return read_base<double>(r, "float"); }
};
template <>
struct SchemaType<int64_t> {
  static constexpr bool kPassedFaithfully = true;
  static constexpr bool read(SchemaReader& r) { return read_base<int64_t>(r, "int"); }
};
template <>
struct SchemaType<bool> {
  static constexpr bool kPassedFaithfully = true;
  static constexpr bool read(SchemaReader& r) { return read_base<bool>(r, "bool"); }
};
template <>
struct SchemaType<std::string> {
  static constexpr bool kPassedFaithfully = true;
  static constexpr bool read(SchemaReader& r) { return read_base<std::string>(r, "str"); }
};
template <>
struct SchemaType<torch::stable::Tensor> {
  static constexpr bool kPassedFaithfully = true;
  static constexpr bool read(SchemaReader& r) {
    return read_base<torch::stable::Tensor>(r, "Tensor");
  }
};
template <class T>
struct SchemaType<std::vector<T>> {
  static constexpr bool kPassedFaithfully = SchemaType<T>::kPassedFaithfully;
  static constexpr bool read(SchemaReader& r) { return SchemaType<T>::read(r) && r.take("[]"); }
};
template <class T>
struct SchemaType<std::optional<T>> {
  static constexpr bool kPassedFaithfully = SchemaType<T>::kPassedFaithfully;
  static constexpr bool read(SchemaReader& r) { return SchemaType<T>::read(r) && r.take("?"); }
};

template <class T>
using Plain = std::remove_cv_t<std::remove_reference_t<T>>;

template <class T>
constexpr bool read_parameter(SchemaReader& reader) {
  return SchemaType<Plain<T>>::read(reader) && reader.take_name();
}

template <class R>
constexpr bool read_return(SchemaReader& reader) {
  if constexpr (std::is_void_v<R>) {
    return reader.take("()") && reader.at_end();
  } else {
    return SchemaType<Plain<R>>::read(reader) && reader.at_end();
  }
}

template <class Function>
struct Signature;
template <class R, class... Parameters>
struct Signature<R (*)(Parameters...)> {
  using Function = R (*)(Parameters...);
  static constexpr bool kPassedFaithfully =
      (SchemaType<Plain<Parameters>>::kPassedFaithfully && ...) &&
      (std::is_void_v<R> || SchemaType<Plain<R>>::kPassedFaithfully);

  static constexpr bool matches(std::string_view schema) {
    SchemaReader reader(schema);
    reader.take("*,");
    return (read_parameter<Parameters>(reader) && ...) && reader.take(")") && reader.take("->") &&
           read_return<R>(reader);
  }

  // The stack holds the arguments on entry and the result on return. Taking an argument takes over
  // what it owns.
  template <Function kFunction, size_t... I>
  static void call(StableIValue* stack, std::index_sequence<I...>) {
    using torch::stable::detail::from;
    if constexpr (std::is_void_v<R>) {
      kFunction(Taker<Plain<Parameters>>::take(stack[I])...);
    } else {
      stack[0] = from(kFunction(Taker<Plain<Parameters>>::take(stack[I])...));
    }
  }

  template <Function kFunction>
  static void boxed(StableIValue* stack, uint64_t /*arguments*/, uint64_t /*results*/) {
    call<kFunction>(stack, std::index_sequence_for<Parameters...>());
  }
};

}  // namespace registration

template <auto kFunction, const char* kSchema>
constexpr auto boxed() {
  using S = registration::Signature<decltype(kFunction)>;
  static_assert(S::kPassedFaithfully,
                "the stable ABI passes double, int64_t, bool, std::string, Tensor and vectors and "
                "optionals of these; float or int32_t would receive garbage");
  static_assert(S::matches(kSchema), "the schema's types differ from the C++ signature");
  return &S::template boxed<kFunction>;
}

}  // namespace deepspeed
