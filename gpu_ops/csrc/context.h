// SPDX-License-Identifier: Apache-2.0
// The state that a process keeps from call to call.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "rank_group.h"
#include "thread_pool.h"

// A buffer that grows and is kept, aligned to cache lines.
class Scratch {
  public:
    template <class C>
    C* take(size_t count) {
        size_t bytes = (count * sizeof(C) + 127) / 64 * 64;
        if (bytes > size) {
            memory.reset(static_cast<char*>(std::aligned_alloc(64, bytes)));
            if (!memory) std::abort();
            size = bytes;
        }
        return reinterpret_cast<C*>(memory.get());
    }

  private:
    struct Free {
        void operator()(char* p) const { std::free(p); }
    };
    std::unique_ptr<char, Free> memory;
    size_t size = 0;
};

// Size in bytes of a core's second-level cache; where the system does not tell, what every processor since 2015 has.
static size_t second_level_cache() {
    long found = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    found = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return found > 0 ? size_t(found) : 256 * 1024;
}

struct Context {
    explicit Context(int threads) : threads(threads), own(threads) {}
    // Borrows at most as many cores as there are threads: see lent_cores.h.
    void borrow(const LentCores& lent_cores) {
        threads.use(lent_cores);
        own.resize(threads.most());
    }
    // The number of rows of so many bytes that stay in the second-level cache while all weights are read, at most 128.
    int rows_in_cache(size_t bytes) const {
        const size_t rows = cache_bytes / 2 / bytes;
        return rows < 32 ? 32 : rows > 128 ? 128 : int(rows);
    }
    const size_t cache_bytes = second_level_cache();
    ThreadPool threads;
    Scratch inputs, integers, units, wide, queries, attended, narrow, heads, routed, shared;
    struct Own {
        Scratch weights, panels, sums, known, tiles, query;
    };
    std::vector<Own> own;        // one for each thread
    RankGroup* group = nullptr;  // with whom layers are divided
};
