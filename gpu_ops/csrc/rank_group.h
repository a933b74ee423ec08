// SPDX-License-Identifier: Apache-2.0
// The memory through which the ranks of one worker exchange rows, and their meetings: none leaves one before all have
// come. gpu_ops/collectives/shared_memory.py makes the memory: a header, then two regions of equal size.
//
// Meetings are numbered from 1, without end. What is exchanged in a meeting is written before it and read after it, to
// the region whose number is that of the meeting modulo 2. A region is written again two meetings later, after the one
// between: to come there, every rank has read it.
#pragma once
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "pause.h"

// Unwinds a call of the C interface, which returns the status.
struct GroupError {
    Status status;
};

class RankGroup {
  public:
    // Null if another process has taken this rank, or if the memory cannot hold a row.
    static RankGroup* open(char* memory, int64_t size, int rank, int ranks, double deadline) {
        if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks || size < HEADER + 2 * 64 * ranks)
            return nullptr;
        int32_t nobody = 0;
        Line& own = reinterpret_cast<Line*>(memory + LINES)[rank];
        if (!__atomic_compare_exchange_n(&own.pid, &nobody, getpid(), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return nullptr;
        return new RankGroup(memory, size, rank, ranks, deadline);
    }
    ~RankGroup() {
        for (const pollfd& one : processes)
            if (one.fd >= 0) ::close(one.fd);
    }

    // Memory that all ranks write a part of before they meet next.
    template <class C>
    C* take(size_t count) {
        if (count * sizeof(C) > region) throw GroupError{TOO_LARGE};
        return reinterpret_cast<C*>(memory + HEADER + (number + 1) % 2 * region);
    }

    // Returns once all ranks have come. `call` is the same on all: the shape of what is exchanged.
    void meet(uint64_t call) {
        check();
        number++;
        Line& own = lines[rank];
        __atomic_store_n(&own.calls[number % 2], call, __ATOMIC_RELAXED);
        __atomic_store_n(&own.number, number, __ATOMIC_RELEASE);
        for (int other = 0; other < ranks; other++) wait_for(other);
        for (int other = 0; other < ranks; other++)
            if (__atomic_load_n(&lines[other].calls[number % 2], __ATOMIC_RELAXED) != call) fail(ELSEWHERE, other);
        if (number == 1) watch();
    }

    // Parts [rows][bytes] of all ranks, side by side: to [rows][ranks * bytes].
    void gather(const char* part, size_t rows, size_t bytes, char* to) {
        in_pieces(rows, bytes, ranks, [&](size_t row, size_t count, size_t first, size_t width) {
            char* shared = take<char>(ranks * count * width);
            copy(part + row * bytes + first, bytes, shared + rank * count * width, width, count, width);
            meet(shape(1, count, width));
            for (int other = 0; other < ranks; other++)
                copy(shared + other * count * width, width, to + (row * ranks + other) * bytes + first, ranks * bytes,
                     count, width);
        });
    }

    // Row r of `to` [rows][bytes] becomes x's of rank owners[r].
    void choose(const char* x, size_t rows, size_t bytes, const int64_t* owners, char* to) {
        in_pieces(rows, bytes, 1, [&](size_t row, size_t count, size_t first, size_t width) {
            char* shared = take<char>(count * width);
            for (size_t i = 0; i < count; i++)
                if (owners[row + i] == rank) memcpy(shared + i * width, x + (row + i) * bytes + first, width);
            meet(shape(2, count, width));
            copy(shared, width, to + row * bytes + first, bytes, count, width);
        });
    }

    // counts[from * ranks + to] rows go from one rank to another, the same counts on all ranks. `given(i)` is the i-th
    // row of this rank's, in the order of the ranks that they go to; `taken(i)` is where the i-th of those that it gets
    // is to be, in the order of the ranks that they come from.
    template <class Given, class Taken>
    void all_to_all(const int64_t* counts, size_t bytes, Given&& given, Taken&& taken) {
        // In the memory rows lie in the order of the ranks that they go to.
        struct Run {
            size_t at, end, first;
        };
        std::vector<Run> runs;
        size_t rows = 0, gave = 0, begin = 0, end = 0;
        for (int to = 0; to < ranks; to++) {
            if (to == rank) begin = rows;
            for (int from = 0; from < ranks; from++) {
                const size_t count = size_t(counts[from * ranks + to]);
                if (from == rank) runs.push_back({rows, rows + count, gave}), gave += count;
                rows += count;
            }
            if (to == rank) end = rows;
        }
        in_pieces(rows, bytes, 1, [&](size_t row, size_t count, size_t first, size_t width) {
            char* shared = take<char>(count * width);
            for (const Run& run : runs)
                for (size_t i = std::max(row, run.at); i < std::min(row + count, run.end); i++)
                    memcpy(shared + (i - row) * width, bytes_of(given(run.first + i - run.at)) + first, width);
            meet(shape(5, count, width));
            for (size_t i = std::max(row, begin); i < std::min(row + count, end); i++)
                memcpy(bytes_of(taken(i - begin)) + first, shared + (i - row) * width, width);
        });
    }

    // The first fault that any rank noticed and its rank, or 0.
    uint64_t fault() const { return __atomic_load_n(at_fault(), __ATOMIC_ACQUIRE); }

    static uint64_t shape(uint64_t kind, uint64_t rows, uint64_t width) { return kind << 60 | rows << 40 | width; }

    const int rank, ranks;

  private:
    enum { LINES = 256, FAULT = 128, HEADER = 12288, MOST_RANKS = 64 };
    enum { SPINS = 200, YIELDING_MS = 20, LOOK_MS = 1 };
    // What a rank writes, on lines of its own.
    struct alignas(128) Line {
        uint64_t number, calls[2];
        int32_t pid;
    };

    RankGroup(char* memory, int64_t size, int rank, int ranks, double deadline)
        : rank(rank), ranks(ranks), memory(memory), lines(reinterpret_cast<Line*>(memory + LINES)),
          region(size_t(size - HEADER) / 2 / 64 * 64), deadline(deadline), processes(ranks, pollfd{-1, POLLIN, 0}) {}

    uint64_t* at_fault() const { return reinterpret_cast<uint64_t*>(memory + FAULT); }
    // A rank that has noticed a fault never comes again, so none waits for it.
    void check() const {
        if (fault()) throw GroupError{FAULTY};
    }
    [[noreturn]] void fail(Fault kind, int other) {
        uint64_t none = 0;
        __atomic_compare_exchange_n(at_fault(), &none, uint64_t(kind) << 32 | uint32_t(other), false, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED);
        throw GroupError{FAULTY};
    }

    bool has_come(int other) const { return __atomic_load_n(&lines[other].number, __ATOMIC_ACQUIRE) >= number; }
    // The first rank that is not here, or `ranks`.
    int missing() const {
        int other = 0;
        while (other < ranks && has_come(other)) other++;
        return other;
    }

    // Spins for some microseconds; then leaves the core to others that want it; then sleeps for a millisecond at a
    // time, and checks that the other ranks live.
    void wait_for(int other) {
        for (int spin = 0; spin < SPINS; spin++) {
            if (has_come(other)) return;
            pause_spinning();
        }
        const double begun = seconds();
        while (!has_come(other)) {
            check();
            const double waited = seconds() - begun;
            if (waited * 1e3 < YIELDING_MS)
                sched_yield();
            else
                look(waited);
        }
    }
    // What was noticed counts only if a rank is missing after it: this rank may have been halted itself.
    void look(double waited) {
        watch();
        const bool ended = poll(processes.data(), nfds_t(ranks), LOOK_MS) > 0;
        const int late = missing();
        if (late == ranks) return;
        if (ended)
            for (int other = 0; other < ranks; other++)
                if (processes[other].revents) fail(ENDED, other);
        if (waited > deadline) fail(LATE, late);
    }
    // Opens the others' processes, which have their pids at least until they are waited for.
    void watch() {
#if defined(SYS_pidfd_open)
        for (int other = 0; other < ranks; other++) {
            const int32_t pid = __atomic_load_n(&lines[other].pid, __ATOMIC_RELAXED);
            if (processes[other].fd >= 0 || other == rank || !pid) continue;
            processes[other].fd = int(syscall(SYS_pidfd_open, pid, 0));
            if (processes[other].fd < 0 && errno == ESRCH && !has_come(other)) fail(ENDED, other);
        }
#endif
    }

    // Calls f(row, rows, byte, bytes) for pieces of rows, of which `copies` fit a region.
    template <class F>
    void in_pieces(size_t rows, size_t bytes, size_t copies, F&& f) {
        if (!rows || !bytes) return;
        const size_t width = std::min(bytes, region / copies), most = region / (copies * width);
        for (size_t first = 0; first < bytes; first += width)
            for (size_t row = 0; row < rows; row += most)
                f(row, std::min(rows - row, most), first, std::min(bytes - first, width));
    }
    static void copy(const char* from, size_t from_stride, char* to, size_t to_stride, size_t rows, size_t width) {
        for (size_t row = 0; row < rows; row++) memcpy(to + row * to_stride, from + row * from_stride, width);
    }
    static const char* bytes_of(const void* row) { return static_cast<const char*>(row); }
    static char* bytes_of(void* row) { return static_cast<char*>(row); }
    static double seconds() {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
    }

    char* const memory;
    Line* const lines;
    const size_t region;
    const double deadline;
    std::vector<pollfd> processes;
    uint64_t number = 0;  // of the last meeting
};
