// Threads and their scratch memory.
#pragma once

#include <omp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>

namespace flashgen {

// Whether this process was forked after this library was loaded. A forked child inherits libgomp's
// record of its threads but not the threads, and would wait for them forever.
// One flag for the process: the first library's stands for all.
__attribute__((visibility("default"))) inline std::atomic<bool> g_forked{false};

struct ForkWatch {
    ForkWatch() {
        pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });
    }
};
inline ForkWatch g_fork_watch;

inline int thread_count(int64_t tasks) {
    if (g_forked.load()) return 1;
    return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(omp_get_max_threads(), tasks)));
}

// One `Scratch` for each thread; allocated before the threads start, so that a failure is an
// error of the call.
template <typename Scratch>
class PerThread {
  public:
    explicit PerThread(int threads)
        : data_(static_cast<Scratch*>(aligned_alloc(alignof(Scratch), sizeof(Scratch) * threads))) {
    }
    ~PerThread() { free(data_); }
    PerThread(const PerThread&) = delete;
    PerThread& operator=(const PerThread&) = delete;

    bool ok() const { return data_ != nullptr; }
    Scratch& mine() const { return data_[omp_get_thread_num()]; }

  private:
    Scratch* data_;
};

// Zeroed memory that all threads share; empty until allocated.
template <typename T>
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(int64_t size) { allocate(size); }
    ~Buffer() { free(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    bool allocate(int64_t size) {
        size_ = size;
        data_ = static_cast<T*>(calloc(std::max<int64_t>(size, 1), sizeof(T)));
        return data_ != nullptr;
    }
    int64_t size() const { return size_; }
    const T* data() const { return data_; }
    T& operator[](int64_t i) const { return data_[i]; }

  private:
    T* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace flashgen
