// The operators as plain Python functions, for the calls that most calls are.
//
// torch's general way to call an operator matches arguments with a schema and boxes them, which takes longer
// than the arithmetic of a small layer. Here an ordinary call goes straight to torch's dispatcher. None says
// that this call is not an ordinary one, and that nothing was done: the general way is for it.
//
// This file alone knows Python. Where Python's headers are missing, the library is built without it.

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace {

using at::Tensor;
using std::optional;

// Whether torch.func, a tracer, or a mode wants to see every operation.
bool somebody_watches() {
  constexpr c10::DispatchKeySet watching{c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::Tracer,
                                         c10::DispatchKey::Python};
  return at::impl::torch_function_mode_enabled() || c10::impl::tls_local_dispatch_key_set().included_.has_any(watching);
}

bool is_ordinary(PyObject* argument) {  // no subclass, which may have a mind of its own
  return THPVariable_CheckExact(argument) && THPVariable_Unpack(argument).is_cpu();
}

optional<Tensor> tensor_or_none(PyObject* argument) {
  return Py_IsNone(argument) ? optional<Tensor>() : optional<Tensor>(THPVariable_Unpack(argument));
}

template <class F>
c10::TypedOperatorHandle<F> operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<F>();
}

// splash(x, a_pos, a_neg, hinges, trailing, grad_scale)
PyObject* splash(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 6, "splash takes 6 arguments, got ", count);
  if (somebody_watches() || !std::all_of(args, args + 4, is_ordinary)) Py_RETURN_NONE;
  const int64_t trailing = PyLong_AsLongLong(args[4]);
  const double grad_scale = PyFloat_AsDouble(args[5]);
  if (PyErr_Occurred()) return nullptr;
  static const auto op =
      operator_named<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, double)>("splash_units::splash");
  const auto tensor = [&](int i) -> const Tensor& { return THPVariable_Unpack(args[i]); };
  Tensor y;
  {
    pybind11::gil_scoped_release while_it_computes;
    y = op.call(tensor(0), tensor(1), tensor(2), tensor(3), trailing, grad_scale);
  }
  return THPVariable_Wrap(std::move(y));
  END_HANDLE_TH_ERRORS
}

// batch_norm_splash(x, weight, bias, running_mean, running_var, a_pos, a_neg, hinges, training, momentum, eps,
// grad_scale): y alone
PyObject* batch_norm_splash(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 12, "batch_norm_splash takes 12 arguments, got ", count);
  const auto may_be_absent = [](PyObject* argument) { return Py_IsNone(argument) || is_ordinary(argument); };
  if (somebody_watches() || !is_ordinary(args[0]) || !std::all_of(args + 1, args + 5, may_be_absent) ||
      !std::all_of(args + 5, args + 8, is_ordinary))
    Py_RETURN_NONE;
  const bool training = PyObject_IsTrue(args[8]) == 1;
  const double momentum = PyFloat_AsDouble(args[9]), eps = PyFloat_AsDouble(args[10]), grad_scale = PyFloat_AsDouble(args[11]);
  if (PyErr_Occurred()) return nullptr;
  using Optional = const optional<Tensor>&;
  static const auto op = operator_named<std::tuple<Tensor, Tensor, Tensor>(
      const Tensor&, Optional, Optional, Optional, Optional, const Tensor&, const Tensor&, const Tensor&, bool, double, double, double)>(
      "splash_units::batch_norm_splash");
  const auto tensor = [&](int i) -> const Tensor& { return THPVariable_Unpack(args[i]); };
  const optional<Tensor> weight = tensor_or_none(args[1]), bias = tensor_or_none(args[2]), mean = tensor_or_none(args[3]),
                         var = tensor_or_none(args[4]);
  Tensor y;
  {
    pybind11::gil_scoped_release while_it_computes;
    y = std::get<0>(op.call(tensor(0), weight, bias, mean, var, tensor(5), tensor(6), tensor(7), training, momentum, eps, grad_scale));
  }
  return THPVariable_Wrap(std::move(y));
  END_HANDLE_TH_ERRORS
}

template <class F>
PyMethodDef method(const char* name, F function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef functions[] = {method("splash", splash), method("batch_norm_splash", batch_norm_splash), {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition{PyModuleDef_HEAD_INIT, "splash_units_calls", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_splash_units_calls() { return PyModule_Create(&definition); }
