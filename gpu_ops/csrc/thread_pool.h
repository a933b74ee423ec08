// SPDX-License-Identifier: Apache-2.0
// The threads of one worker, and threads on cores that other workers lend temporarily. They wait for work by spinning
// for some microseconds, then asleep.
#pragma once
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lent_cores.h"
#include "pause.h"

class ThreadPool {
  public:
    explicit ThreadPool(int threads) : own(threads) { employ(threads - 1); }
    ~ThreadPool() {
        for (auto& helper : helpers) {
            helper->state.store(LEAVING);
            std::atomic_thread_fence(std::memory_order_seq_cst);
            rouse(*helper);
        }
        for (auto& helper : helpers) helper->thread.join();
    }

    // Borrows, from now on, cores that are lent in this table, at most as many as there are threads.
    void use(const LentCores& lenders) {
        lent_cores = lenders, usable.assign(lenders.cores, true);
        employ(own);
    }
    int most() const { return int(helpers.size()) + 1; }
    // The number of threads that work now.
    int size() const { return own + borrowed; }

    // Borrows cores for one piece of work. Between its shares the cells are checked: an owner that takes a core back
    // shares it with a borrowed thread for the rest of one share at most.
    class Loan {
      public:
        explicit Loan(ThreadPool& threads) : threads(threads) { threads.borrow(); }
        ~Loan() { threads.give_back(); }

      private:
        ThreadPool& threads;
    };

    // Calls f(first, end, thread) for parts of [0, count), no thread at two of them at once, and returns when all are
    // done. Each thread begins with a run of its own, then helps with others' runs; the caller helps with all of them.
    // A thread that starts late, because its core is busy with another process, is waited for only if it is in the
    // middle of a part.
    template <class F>
    void share(int count, F&& f) {
        if (borrowed) dismiss();
        team = count < size() ? count : size();
        if (team <= 1) return f(0, count, 0);
        call = [](void* f, int first, int end, int thread) {
            (*static_cast<std::remove_reference_t<F>*>(f))(first, end, thread);
        };
        with = &f, unit = count / (team * PARTS) + 1;
        for (int number = 0; number < team; number++) {
            runs[number].next.store(int(int64_t(count) * number / team), std::memory_order_relaxed);
            runs[number].end = int(int64_t(count) * (number + 1) / team);
        }
        offer();
        work(0, team);
        for (int number = 1; number < team; number++) finish(*helpers[number - 1]);
    }

  private:
    typedef void (*Call)(void*, int, int, int);
    enum { SPINS = 4000, PARTS = 8, HELPED = 3, NOWHERE = -1 };
    enum State { RESTING, OFFERED, TAKEN, LEAVING };

    // The caller writes `number` and `core` (to which a borrowed thread is pinned); the helper reads its number once it
    // has taken an offer.
    struct alignas(64) Helper {
        std::atomic<int> state{RESTING};
        std::atomic<bool> asleep{false};
        int number = 0, core = NOWHERE;
        std::mutex mutex;
        std::condition_variable wake;
        std::thread thread;
    };
    struct alignas(64) Run {
        std::atomic<int> next{0};
        int end = 0;
    };

    void employ(int count) {
        for (int i = 0; i < count; i++) {
            helpers.push_back(std::make_unique<Helper>());
            helpers.back()->thread = std::thread([this, helper = helpers.back().get()] { serve(*helper); });
        }
        runs = std::vector<Run>(most());
    }
    void offer() {
        for (int number = 1; number < team; number++) {
            helpers[number - 1]->number = number;
            helpers[number - 1]->state.store(OFFERED, std::memory_order_release);
        }
        std::atomic_thread_fence(std::memory_order_seq_cst);
        for (int number = 1; number < team; number++) rouse(*helpers[number - 1]);
    }
    // Called after a change of the helper's state and a fence: either the helper sees the change before it sleeps, or
    // it is seen asleep and woken.
    static void rouse(Helper& helper) {
        if (!helper.asleep.load(std::memory_order_relaxed) || !helper.asleep.exchange(false)) return;
        { std::lock_guard<std::mutex> lock(helper.mutex); }
        helper.wake.notify_one();
    }
    // Withdraws an offer that was not taken: other threads have done its run.
    static void finish(Helper& helper) {
        int state = helper.state.load(std::memory_order_acquire);
        if (state == RESTING || (state == OFFERED && helper.state.compare_exchange_strong(state, RESTING))) return;
        while (helper.state.load(std::memory_order_acquire) != RESTING) pause_spinning();
    }
    // Works on `count` runs, beginning with the thread's own.
    void work(int thread, int count) {
        for (int i = 0; i < count; i++) {
            Run& run = runs[(thread + i) % team];
            while (run.next.load(std::memory_order_relaxed) < run.end) {
                const int first = run.next.fetch_add(unit, std::memory_order_relaxed);
                if (first >= run.end) break;
                call(with, first, first + unit < run.end ? first + unit : run.end, thread);
            }
        }
    }
    void serve(Helper& helper) {
        for (;;) {
            for (int spins = 0; helper.state.load(std::memory_order_relaxed) == RESTING && spins < SPINS; spins++)
                pause_spinning();
            int offered = OFFERED;
            if (helper.state.compare_exchange_strong(offered, TAKEN)) {
                work(helper.number, team < 1 + HELPED ? team : 1 + HELPED);
                helper.state.store(RESTING, std::memory_order_release);
            } else if (offered == LEAVING) {
                return;
            } else {
                sleep(helper);
            }
        }
    }
    static void sleep(Helper& helper) {
        std::unique_lock<std::mutex> lock(helper.mutex);
        helper.asleep.store(true);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (helper.state.load() == RESTING) helper.wake.wait(lock, [&] { return !helper.asleep.load(); });
        helper.asleep.store(false);
    }

    // Borrowed threads that have a core are helpers[own - 1 ...], as many as `borrowed`.
    std::unique_ptr<Helper>& borrower(int number) { return helpers[own - 1 + number]; }
    void borrow() {
        for (int core = 0; core < lent_cores.cores && size() < most(); core++)
            if (usable[core] && lent_cores.borrow(core) && !seat(core)) lent_cores.give_back(core);
    }
    // Prefers the thread that ran on this core the last time, if it is free.
    bool seat(int core) {
        for (int number = borrowed; number < most() - own; number++)
            if (borrower(number)->core == core) std::swap(borrower(number), borrower(borrowed));
        Helper& helper = *borrower(borrowed);
        if (helper.core != core && !pin(helper, core)) return usable[core] = false;
        helper.core = core;
        borrowed++;
        return true;
    }
    static bool pin(Helper& helper, int core) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        if (core >= CPU_SETSIZE) return false;
        CPU_SET(core, &cores);
        return pthread_setaffinity_np(helper.thread.native_handle(), sizeof cores, &cores) == 0;
    }
    // Dismisses the threads whose cores are wanted back.
    void dismiss() {
        for (int number = borrowed - 1; number >= 0; number--)
            if (!lent_cores.holds(borrower(number)->core)) std::swap(borrower(number), borrower(--borrowed));
    }
    void give_back() {
        while (borrowed) lent_cores.give_back(borrower(--borrowed)->core);
    }

    const int own;
    std::vector<std::unique_ptr<Helper>> helpers;  // all threads except the caller's
    LentCores lent_cores{nullptr, 0, 0};
    std::vector<bool> usable;  // cores that the system lets this process run on
    int borrowed = 0;
    // State of the current share.
    std::vector<Run> runs;
    Call call = nullptr;
    void* with = nullptr;
    int unit = 1, team = 1;
};
