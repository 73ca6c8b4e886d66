// Reading and checking the arguments of an exported function: the tvm-ffi C ABI, nothing else.
//
// The ABI carries type-tagged values and checks nothing itself, so every argument's type, rank,
// dtype, device and shape is checked here before a kernel sees its pointer.
#pragma once

#include <dlpack/dlpack.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "host/capture.h"
#include "host/tensor.h"

namespace flashgen {

// The DLPack dtype of a capture's elements.
template <typename T>
constexpr DLDataType dlpack_type();
template <>
constexpr DLDataType dlpack_type<bool>() {
    return {kDLBool, 8, 1};
}
template <>
constexpr DLDataType dlpack_type<int32_t>() {
    return {kDLInt, 32, 1};
}
template <>
constexpr DLDataType dlpack_type<int64_t>() {
    return {kDLInt, 64, 1};
}
template <>
constexpr DLDataType dlpack_type<CaptureFp16>() {
    return {kDLFloat, 16, 1};
}
template <>
constexpr DLDataType dlpack_type<CaptureBf16>() {
    return {kDLBfloat, 16, 1};
}
template <>
constexpr DLDataType dlpack_type<float>() {
    return {kDLFloat, 32, 1};
}
template <>
constexpr DLDataType dlpack_type<double>() {
    return {kDLFloat, 64, 1};
}

// Where a call's tensors are, and so where it runs.
using Device = DLDevice;

// The stream that PyTorch has current on that device, a cudaStream_t.
inline void* stream_of(Device device) { return TVMFFIEnvGetStream(kDLCUDA, device.device_id); }

// The arguments of one call, read in order. The first fault is kept as the call's exception and
// every later read returns an empty value, so that a caller checks ok() once, before it launches.
class Arguments {
  public:
    Arguments(const char* function, const TVMFFIAny* args, int32_t num_args, int32_t expected)
        : function_(function), args_(args), num_args_(num_args) {
        if (num_args != expected) {
            fail("TypeError", "%s: expected %d arguments, got %d", function, expected, num_args);
        }
    }

    bool ok() const { return ok_; }
    Device device() const { return device_; }  // of the tensors read so far

    // The next argument, a tensor of rank `ndim` whose last dimension is contiguous.
    Tensor tensor(const char* name, DLDataType dtype, int32_t ndim) {
        const DLTensor* t = checked_tensor(name, dtype, ndim);
        Tensor out = {};
        if (t == nullptr) return out;
        out.data = static_cast<char*>(t->data) + t->byte_offset;
        out.ndim = ndim;
        copy_layout(*t, out.shape, out.strides);
        if (out.shape[ndim - 1] > 1 && out.strides[ndim - 1] != 1) {
            fail("ValueError", "%s: %s: expected a contiguous last dimension, got stride %lld",
                 function_, name, static_cast<long long>(out.strides[ndim - 1]));
        }
        return out;
    }

    // The next argument, a tensor that a program reads: any strides.
    template <typename T, int kRank>
    Capture<T, kRank> capture(const char* name) {
        const DLTensor* t = checked_tensor(name, dlpack_type<std::remove_const_t<T>>(), kRank);
        Capture<T, kRank> out = {};
        if (t == nullptr) return out;
        out.data = reinterpret_cast<T*>(static_cast<char*>(t->data) + t->byte_offset);
        copy_layout(*t, out.sizes, out.strides);
        return out;
    }

    // The next argument, the gradient of `like`: contiguous, of the same sizes.
    template <typename Acc, typename T, int kRank>
    Acc* gradient(const char* name, const Capture<T, kRank>& like) {
        const Capture<Acc, kRank> out = capture<Acc, kRank>(name);
        int64_t packed = 1;
        for (int i = kRank - 1; i >= 0 && ok_; --i) {
            if (out.sizes[i] != like.sizes[i] || (out.sizes[i] > 1 && out.strides[i] != packed)) {
                fail("ValueError", "%s: gradient of %s: expected a contiguous tensor of its shape",
                     function_, name);
            }
            packed *= out.sizes[i];
        }
        return out.data;
    }

    // The next argument, an int32 or int64 tensor of rank 1; `count` is its size.
    Boundaries boundaries(const char* name, int64_t* count) {
        const bool wide = ok_ && dtype_bits(args_[next_]) == 64;
        const DLDataType dtype = wide ? dlpack_type<int64_t>() : dlpack_type<int32_t>();
        const Tensor t = tensor(name, dtype, 1);
        *count = t.shape[0];
        return {t.data, wide};
    }

    // The same, or a Tensor with ndim 0 where the argument is None.
    Tensor optional_tensor(const char* name, DLDataType dtype, int32_t ndim) {
        if (ok_ && next_ < num_args_ && args_[next_].type_index == kTVMFFINone) {
            ++next_;
            return Tensor{};
        }
        return tensor(name, dtype, ndim);
    }

    double real(const char* name) {
        if (!ok_) return 0.0;
        const TVMFFIAny& arg = args_[next_++];
        if (arg.type_index == kTVMFFIFloat) return arg.v_float64;
        if (arg.type_index == kTVMFFIInt) return static_cast<double>(arg.v_int64);
        fail("TypeError", "%s: %s: expected a float", function_, name);
        return 0.0;
    }

    int64_t integer(const char* name) {
        if (!ok_) return 0;
        const TVMFFIAny& arg = args_[next_++];
        if (arg.type_index == kTVMFFIInt) return arg.v_int64;
        fail("TypeError", "%s: %s: expected an int", function_, name);
        return 0;
    }

    // Requires dimension `dim` of `t` to be `expected`.
    void check_size(const char* name, const Tensor& t, int dim, int64_t expected) {
        if (ok_ && t.shape[dim] != expected) {
            fail("ValueError", "%s: %s: expected size %lld in dimension %d, got %lld", function_,
                 name, static_cast<long long>(expected), dim, static_cast<long long>(t.shape[dim]));
        }
    }

    void fail(const char* kind, const char* format, ...) {
        if (!ok_) return;
        ok_ = false;
        char message[512];
        va_list values;
        va_start(values, format);
        vsnprintf(message, sizeof(message), format, values);
        va_end(values);
        TVMFFIErrorSetRaisedFromCStr(kind, message);
    }

    const char* function() const { return function_; }

  private:
    static const DLTensor* tensor_of(const TVMFFIAny& arg) {
        if (arg.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(arg.v_ptr);
        if (arg.type_index != kTVMFFITensor) return nullptr;
        // A tensor object is its header followed by the DLTensor.
        return reinterpret_cast<const DLTensor*>(reinterpret_cast<const char*>(arg.v_obj) +
                                                 sizeof(TVMFFIObject));
    }

    static int dtype_bits(const TVMFFIAny& arg) {
        const DLTensor* t = tensor_of(arg);
        return t == nullptr ? 0 : t->dtype.bits;
    }

    // The next argument, a tensor of that dtype and rank on the device of the others.
    const DLTensor* checked_tensor(const char* name, DLDataType dtype, int32_t ndim) {
        if (!ok_) return nullptr;
        const TVMFFIAny& arg = args_[next_++];
        const DLTensor* t = tensor_of(arg);
        if (t == nullptr) {
            fail("TypeError", "%s: %s: expected a tensor%s", function_, name,
                 arg.type_index == kTVMFFINone ? ", got None" : "");
            return nullptr;
        }
        if (t->dtype.code != dtype.code || t->dtype.bits != dtype.bits || t->dtype.lanes != 1) {
            fail("TypeError", "%s: %s: expected dtype (code %d, %d bits), got (code %d, %d bits)",
                 function_, name, dtype.code, dtype.bits, t->dtype.code, t->dtype.bits);
            return nullptr;
        }
        if (t->ndim != ndim) {
            fail("ValueError", "%s: %s: expected %d dimensions, got %d", function_, name, ndim,
                 t->ndim);
            return nullptr;
        }
        if (have_device_ && (t->device.device_type != device_.device_type ||
                             t->device.device_id != device_.device_id)) {
            fail("ValueError", "%s: %s: expected device (%d, %d), got (%d, %d)", function_, name,
                 device_.device_type, device_.device_id, t->device.device_type,
                 t->device.device_id);
            return nullptr;
        }
        device_ = t->device;
        have_device_ = true;
        return t;
    }

    static void copy_layout(const DLTensor& t, int64_t* shape, int64_t* strides) {
        int64_t packed = 1;  // strides may be absent: then the tensor is packed
        for (int32_t i = t.ndim - 1; i >= 0; --i) {
            shape[i] = t.shape[i];
            strides[i] = t.strides != nullptr ? t.strides[i] : packed;
            packed *= t.shape[i];
        }
    }

    const char* function_;
    const TVMFFIAny* args_;
    int32_t num_args_;
    int32_t next_ = 0;
    bool ok_ = true;
    bool have_device_ = false;
    Device device_ = {};
};

inline void return_integer(TVMFFIAny* result, int64_t value) {
    result->type_index = kTVMFFIInt;
    result->zero_padding = 0;
    result->v_int64 = value;
}

}  // namespace flashgen
