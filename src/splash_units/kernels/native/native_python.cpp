// The operators as plain Python functions, for the calls that most calls are.
//
// torch's general way to call an operator matches arguments with a schema and boxes them, which takes longer
// than the arithmetic of a small layer. Here an ordinary call goes straight to torch's dispatcher. One that is
// not ordinary is left to the general way, if the function was given one; else the answer is None, and nothing
// was done.
//
// This file alone knows Python. Where Python's headers are missing, the library is built without it.

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "operators.h"

namespace {

namespace operators = splash_units::operators;
using at::Tensor;
using std::optional;

// Whether torch.func, a tracer, or a mode wants to see every operation.
bool somebody_watches() {
  constexpr c10::DispatchKeySet watching{c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::Tracer,
                                         c10::DispatchKey::Python};
  return at::impl::torch_function_mode_enabled() || c10::impl::tls_local_dispatch_key_set().included_.has_any(watching);
}

// An argument of an ordinary call, by the type that the operator has for it.
template <class A> struct Argument;
template <> struct Argument<const Tensor&> {
  static bool is_ordinary(PyObject* o) {  // no subclass, which may have a mind of its own
    return THPVariable_CheckExact(o) && THPVariable_Unpack(o).is_cpu();
  }
  static const Tensor& get(PyObject* o) { return THPVariable_Unpack(o); }
};
// The caller's tensor, if there is one, where an optional is asked for that would count one more reference to it: see Held.
class Borrowed {
  using Borrow = c10::MaybeOwnedTraits<Tensor>;

 public:
  Borrowed() = default;
  explicit Borrowed(const Tensor& t) : tensor_(Borrow::createBorrow(t)) {}
  Borrowed(Borrowed&& other) noexcept : tensor_(std::exchange(other.tensor_, std::nullopt)) {}
  ~Borrowed() {
    if (tensor_) Borrow::destroyBorrow(*tensor_);
  }
  operator const optional<Tensor>&() const { return tensor_; }

 private:
  optional<Tensor> tensor_;
};
template <> struct Argument<const optional<Tensor>&> {
  static bool is_ordinary(PyObject* o) { return Py_IsNone(o) || Argument<const Tensor&>::is_ordinary(o); }
  static Borrowed get(PyObject* o) { return Py_IsNone(o) ? Borrowed() : Borrowed(THPVariable_Unpack(o)); }
};
template <> struct Argument<bool> {
  static bool is_ordinary(PyObject* o) { return PyBool_Check(o); }
  static bool get(PyObject* o) { return Py_IsTrue(o); }
};
template <> struct Argument<int64_t> {
  static bool is_ordinary(PyObject* o) { return PyLong_CheckExact(o); }
  static int64_t get(PyObject* o) { return PyLong_AsLongLong(o); }
};
template <> struct Argument<c10::SymInt> : Argument<int64_t> {};
template <> struct Argument<double> {
  static bool is_ordinary(PyObject* o) { return PyFloat_CheckExact(o); }
  static double get(PyObject* o) { return PyFloat_AS_DOUBLE(o); }
};

PyObject* wrapped(Tensor&& t) { return THPVariable_Wrap(std::move(t)); }
template <class... T>
PyObject* wrapped(std::tuple<T...>&& results) {
  PyObject* tuple = PyTuple_New(sizeof...(T));
  Py_ssize_t i = 0;
  std::apply([&](T&... t) { (PyTuple_SET_ITEM(tuple, i++, wrapped(std::move(t))), ...); }, results);
  return tuple;
}

constexpr int64_t soon_done = 32768;  // elements: a few microseconds

template <class Operator, class... A>
PyObject* result_of(const Tensor& x, A&&... others) {
  return wrapped([&] {
    // To let other threads have Python's lock and to take it back costs as much as a thousand elements.
    optional<pybind11::gil_scoped_release> while_it_computes;
    if (x.numel() > soon_done) while_it_computes.emplace();
    return operators::call<Operator>(x, std::forward<A>(others)...);
  }());
}

template <class Operator, class Signature = typename Operator::Signature>
struct Function;

template <class Operator, class R, class... A>
struct Function<Operator, R(A...)> {
  static PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    HANDLE_TH_ERRORS
    return call_with(self, args, count, names, std::index_sequence_for<A...>());
    END_HANDLE_TH_ERRORS
  }

 private:
  template <size_t... I>
  static PyObject* call_with(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names, std::index_sequence<I...>) {
    if (names || count != sizeof...(A) || somebody_watches() || !(Argument<A>::is_ordinary(args[I]) && ...)) {
      if (PyModule_Check(self)) Py_RETURN_NONE;
      return PyObject_Vectorcall(self, args, count, names);
    }
    const std::tuple<decltype(Argument<A>::get(args[I]))...> values{Argument<A>::get(args[I])...};
    if (PyErr_Occurred()) return nullptr;
    return result_of<Operator>(std::get<I>(values)...);
  }
};

// What Splash.forward asks for: the operator, told by a module's `share`, `dim` and `grad_scale`, which Python would need
// longer to make sense of than the kernel to compute a small layer. What it does not serve, splash_units.unit does.
class Unit {
 public:
  static PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {  // x, a_pos, a_neg, hinges, share, dim, grad_scale
    HANDLE_TH_ERRORS
    using OfTensor = Argument<const Tensor&>;
    if (count != 7 || somebody_watches() || !std::all_of(args, args + 4, OfTensor::is_ordinary)) Py_RETURN_NONE;
    const Tensor &x = OfTensor::get(args[0]), &a_pos = OfTensor::get(args[1]);
    const auto where = channels_of(x, a_pos, args[4], args[5]);
    if (!where) Py_RETURN_NONE;
    const auto scale = scale_for(x, *where, args[6]);
    if (!scale) Py_RETURN_NONE;
    return result_of<operators::Splash>(x, a_pos, OfTensor::get(args[2]), OfTensor::get(args[3]), where->trailing, *scale);
    END_HANDLE_TH_ERRORS
  }

 private:
  struct Channels {
    int64_t count, dim, trailing;  // count: 0 if the layer shares its slopes
  };
  static bool is(PyObject* word, const char* expected) {
    return PyUnicode_CheckExact(word) && PyUnicode_CompareWithASCIIString(word, expected) == 0;
  }
  static optional<Channels> channels_of(const Tensor& x, const Tensor& a_pos, PyObject* share, PyObject* along) {
    if (is(share, "layer")) return Channels{0, 0, 0};
    if (!is(share, "channel") || !PyLong_CheckExact(along)) return std::nullopt;
    int overflow;
    const int64_t rank = x.dim(), given = PyLong_AsLongLongAndOverflow(along, &overflow), dim = given < 0 ? given + rank : given;
    if (overflow || dim < 0 || dim >= rank || a_pos.dim() != 2 || a_pos.size(1) != x.size(dim)) return std::nullopt;
    return Channels{x.size(dim), dim, rank - dim - 1};
  }
  // As splash_units.sharing.automatic_scale has it, if that is asked for.
  static optional<double> scale_for(const Tensor& x, const Channels& channels, PyObject* grad_scale) {
    if (PyFloat_CheckExact(grad_scale)) return PyFloat_AS_DOUBLE(grad_scale);
    if (!is(grad_scale, "auto")) return std::nullopt;
    if (x.dim() < 2 || x.size(0) == 0) return 1;
    int64_t sharing = c10::multiply_integers(x.sizes().slice(1));
    if (!channels.count) return sharing > 9 ? 3 / std::sqrt(double(sharing)) : 1;
    if (channels.dim > 0) sharing /= channels.count;
    return sharing > 1 ? 1 / std::sqrt(double(sharing)) : 1;
  }
};

template <class F>
PyMethodDef method(const char* name, F* function, int flags) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), flags, nullptr};
}
template <class Operator>
PyMethodDef method() {
  return method(Operator::name + sizeof("splash_units::") - 1, &Function<Operator>::call, METH_FASTCALL | METH_KEYWORDS);
}

PyObject* with_general_way(PyObject* module, PyObject* const* args, Py_ssize_t count);

PyMethodDef functions[] = {
    method<operators::Splash>(),
    method<operators::SplashBackward>(),
    method<operators::BatchNormSplash>(),
    method<operators::BatchNormSplashBackward>(),
    method("unit", &Unit::call, METH_FASTCALL),
    method("with_general_way", &with_general_way, METH_FASTCALL),
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition{PyModuleDef_HEAD_INIT, "splash_units_calls", nullptr, -1, functions};

// with_general_way(name, general): the operator of that name, which leaves to `general` what is not ordinary
PyObject* with_general_way(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 2 && PyUnicode_Check(args[0]), "with_general_way takes a name and a function");
  for (PyMethodDef* function = functions; function->ml_name; ++function)
    if (function->ml_flags & METH_KEYWORDS && PyUnicode_CompareWithASCIIString(args[0], function->ml_name) == 0) return PyCFunction_NewEx(function, args[1], nullptr);
  TORCH_CHECK_VALUE(false, "there is no such operator");
  END_HANDLE_TH_ERRORS
}

}  // namespace

PyMODINIT_FUNC PyInit_splash_units_calls() { return PyModule_Create(&definition); }
