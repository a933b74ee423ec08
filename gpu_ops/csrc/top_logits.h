// SPDX-License-Identifier: Apache-2.0
// The highest logits of a row, to the bit, as gpu_ops/draws/top_logits.py defines them.
#pragma once
#include <algorithm>
#include <cmath>

#include "linear.h"
#include "vector.h"

// The `count` highest of the logits that were taken, of rising ids: the highest first, of equal ones the lowest id.
struct TopList {
    int32_t (*pairs)[2];
    const int count;
    int found = 0;
    // What is not above it is not among them; NaN is above nothing.
    float least = -INFINITY;

    void take(int id, float logit) {
        // Only where the list is not full are NaN and minus infinity as good as any.
        if (found == count && !(logit > least)) return;
        if (std::isnan(logit)) logit = -INFINITY;
        if (logit == 0) logit = 0;  // the other zero has other bits
        int at = found < count ? found++ : count - 1;
        for (; at && logit > logit_at(at - 1); at--) memcpy(pairs[at], pairs[at - 1], sizeof *pairs);
        pairs[at][0] = id;
        memcpy(&pairs[at][1], &logit, sizeof logit);
        if (found == count) least = logit_at(count - 1);
    }
    float logit_at(int at) const {
        float logit;
        memcpy(&logit, &pairs[at][1], sizeof logit);
        return logit;
    }
};

// Takes ids from `id` to `last` of a row.
static void take_ids(TopList& list, const float* row, int id, int last) {
    enum { STEP = 4 * NATIVE_LANES };
    for (; id < last && list.found < list.count; id++) list.take(id, row[id]);
    // Few of a vocabulary are higher than all but a few before them.
    for (; id + STEP <= last; id += STEP) {
        Native x[4];
        memcpy(x, row + id, sizeof x);
        if (any((x[0] > list.least) | (x[1] > list.least) | (x[2] > list.least) | (x[3] > list.least)))
            for (int i = 0; i < STEP; i++) list.take(id + i, row[id + i]);
    }
    for (; id < last; id++) list.take(id, row[id]);
}

// Finds those of a row, whose groups have these `tops` if they are known. Of the groups by (highest logit, place) the
// first `count` have all of them: each group before another one has an id that comes before all of the other's.
static void top_logits(const float* row, const float* tops, int vocabulary, int count, int32_t* pairs) {
    enum { MOST = 32 };
    memset(pairs, -1, 2 * count * sizeof *pairs);
    if (!count) return;
    TopList list{reinterpret_cast<int32_t (*)[2]>(pairs), count};
    if (!tops || count > MOST) return take_ids(list, row, 0, vocabulary);
    int32_t best[MOST][2], chosen[MOST];
    TopList groups{best, count};
    take_ids(groups, tops, 0, int(padded(vocabulary, GROUP) / GROUP));
    for (int i = 0; i < groups.found; i++) chosen[i] = best[i][0];
    // Of equal logits that of the lowest id counts.
    std::sort(chosen, chosen + groups.found);
    for (int i = 0; i < groups.found; i++)
        take_ids(list, row, chosen[i] * GROUP, std::min((chosen[i] + 1) * GROUP, vocabulary));
}
