// SPDX-License-Identifier: Apache-2.0
// The threads of one worker. They wait for work by spinning for some microseconds, then asleep.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

class Crew {
  public:
    explicit Crew(int threads) : size(threads) {
        for (int number = 1; number < threads; number++) hands.emplace_back([this, number] { serve(number); });
    }
    ~Crew() {
        announce(nullptr, nullptr, 0);
        for (auto& hand : hands) hand.join();
    }

    const int size;

    // Calls f(first, end, thread) for shares of [0, count), each thread one share, and returns when all are done.
    template <class F>
    void share(int count, F&& f) {
        if (size == 1 || count == 1) return f(0, count, 0);
        auto call = [](void* f, int first, int end, int thread) {
            (*static_cast<std::remove_reference_t<F>*>(f))(first, end, thread);
        };
        announce(call, &f, count);
        work(0);
        while (busy.load(std::memory_order_acquire)) pause();
    }

  private:
    typedef void (*Call)(void*, int, int, int);
    enum { SPINS = 4000 };

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    void announce(Call call, void* with, int items) {
        this->call = call, this->with = with, this->items = items;
        busy.store(size - 1, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex);
            turn.fetch_add(1, std::memory_order_release);
        }
        wake.notify_all();
    }
    void work(int thread) {
        int first = int(int64_t(items) * thread / size), end = int(int64_t(items) * (thread + 1) / size);
        if (first < end) call(with, first, end, thread);
    }
    void serve(int thread) {
        for (unsigned seen = 0;;) {
            for (int spins = 0; turn.load(std::memory_order_acquire) == seen && spins < SPINS; spins++) pause();
            if (turn.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex);
                wake.wait(lock, [&] { return turn.load(std::memory_order_acquire) != seen; });
            }
            seen++;
            if (!call) return;
            work(thread);
            busy.fetch_sub(1, std::memory_order_release);
        }
    }

    std::vector<std::thread> hands;
    std::atomic<unsigned> turn{0};
    std::atomic<int> busy{0};
    std::mutex mutex;
    std::condition_variable wake;
    Call call = nullptr;
    void* with = nullptr;
    int items = 0;
};
