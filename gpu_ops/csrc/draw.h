// SPDX-License-Identifier: Apache-2.0
// Draws of ids from probabilities, as gpu_ops/draws/sampling.py defines them: `kept_places` says which ids top_p keeps,
// and `invert` which of these a number draws. No order of all ids is made, and none of the kept ids: a row is read a
// few times, from the processor's cache.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "vector.h"

enum { PAIRS = NATIVE_BYTES / 8, RUN = 256, BIN_SHIFT = 17, BINS = 0x7f800000 >> BIN_SHIFT };
typedef double Doubles __attribute__((vector_size(NATIVE_BYTES)));
typedef float HalfNative __attribute__((vector_size(NATIVE_BYTES / 2)));
typedef int32_t HalfWords __attribute__((vector_size(NATIVE_BYTES / 2)));

INLINE Doubles widened(HalfNative x) { return __builtin_convertvector(x, Doubles); }
INLINE HalfNative where(HalfWords mask, HalfNative x) { return (HalfNative)(mask & (HalfWords)x); }
INLINE double sum(Doubles x) {
    double total = 0;
    for (int i = 0; i < PAIRS; i++) total += x[i];
    return total;
}

// Whole units of 2^-48, rounded down. A sum of them over a row is a whole number below 2^53, so exact in any order.
INLINE int64_t units(float mass) { return int64_t(mass * 0x1p48f); }
INLINE Doubles units(HalfNative mass) {
    const HalfNative scaled = mass * 0x1p48f, limit = HalfNative{} + 0x1p23f;
    // From the limit on every number is whole.
    const HalfNative down = __builtin_convertvector(__builtin_convertvector(min(scaled, limit), HalfWords), HalfNative);
    return widened(scaled < limit ? down : scaled);
}

// Ids are kept from the logit `lowest` on; those with that very logit only before the id `split`.
struct Kept {
    float lowest;
    int split;
};

struct DrawnRow {
    const float *logits, *masses;
    int count;

    // Calls take(logits, masses) for the ids [first, end), a few at a time; none are left out, and what fills up the
    // last ones has no mass.
    template <class Take>
    inline __attribute__((always_inline)) void each(int first, int end, const Take& take) const {
        HalfNative logit, mass;
        for (; first + PAIRS <= end; first += PAIRS) {
            memcpy(&logit, logits + first, sizeof logit), memcpy(&mass, masses + first, sizeof mass);
            take(logit, mass);
        }
        if (first >= end) return;
        logit = HalfNative{} - INFINITY, mass = HalfNative{};
        memcpy(&logit, logits + first, (end - first) * sizeof(float));
        memcpy(&mass, masses + first, (end - first) * sizeof(float));
        take(logit, mass);
    }
    double mass_from(float lowest) const {
        Doubles total = {};
        each(0, count, [&](HalfNative logit, HalfNative mass) { total += widened(where(logit >= lowest, mass)); });
        return sum(total);
    }
    // The units of the kept ids in [first, end).
    double units_of(const Kept& kept, int first, int end) const {
        const int split = std::max(first, std::min(end, kept.split));
        Doubles total = {};
        each(first, split, [&](HalfNative logit, HalfNative mass) {
            total += units(where(logit >= kept.lowest, mass));
        });
        each(split, end, [&](HalfNative logit, HalfNative mass) {
            total += units(where(logit > kept.lowest, mass));
        });
        return sum(total);
    }
};

struct CutScratch {
    std::vector<float> logits, masses;
    std::vector<std::pair<float, float>> candidates;
    std::vector<double> bins = std::vector<double>(BINS + 1);
    std::vector<int64_t> reached;
};

// Masses between which the cut lies: that of the ids from `high` on is less than the target, that from `low` on is not.
struct Limits {
    float low, high;
};

// Doubles `least`, from which on the target is reached, until it no longer is.
static Limits limits_of_cut(const DrawnRow& row, float floor, float least, double target) {
    enum { STEPS = 8 };
    Native totals[STEPS] = {};
    float masses[STEPS];
    for (int step = 0; step < STEPS; step++) masses[step] = std::ldexp(least, step + 1);
    for (int i = 0; i + NATIVE_LANES <= row.count; i += NATIVE_LANES) {
        Native logit, mass;
        memcpy(&logit, row.logits + i, sizeof logit), memcpy(&mass, row.masses + i, sizeof mass);
        mass = (Native)((NativeWords)mass & (logit >= floor));
#pragma GCC unroll 8
        for (int step = 0; step < STEPS; step++)
            totals[step] += (Native)((NativeWords)mass & (mass >= masses[step]));
    }
    // These sums are rounded, and lack the last few ids.
    double rest = 0;
    for (int i = row.count - row.count % NATIVE_LANES; i < row.count; i++) rest += row.masses[i];
    Limits limits{least, INFINITY};
    for (int step = 0; step < STEPS; step++) {
        double total = 0;
        for (int i = 0; i < NATIVE_LANES; i++) total += totals[step][i];
        if (total > 1.0001 * target) limits.low = masses[step];
        if (total + rest < 0.9999 * target) limits.high = std::min(limits.high, masses[step]);
    }
    return limits;
}

INLINE uint32_t bin_of(float mass) {
    uint32_t bits;
    memcpy(&bits, &mass, sizeof bits);
    return std::min(bits >> BIN_SHIFT, uint32_t(BINS));
}

// Collects the ids between the limits; returns the number of them.
static size_t between(const DrawnRow& row, float floor, Limits limits, CutScratch& scratch) {
    scratch.logits.resize(row.count + 1), scratch.masses.resize(row.count + 1);
    float *logits = scratch.logits.data(), *masses = scratch.masses.data();
    size_t few = 0;
    // A branch would be guessed wrong for each id that is looked at.
    const auto look_at = [&](int first, int end) {
        for (int i = first; i < end; i++) {
            const float logit = row.logits[i], mass = row.masses[i];
            logits[few] = logit, masses[few] = mass;
            few += (mass >= limits.low) & (mass < limits.high) & (logit >= floor);
        }
    };
    int i = 0;
    for (; i + NATIVE_LANES <= row.count; i += NATIVE_LANES) {
        Native mass;
        memcpy(&mass, row.masses + i, sizeof mass);
        if (any((mass >= limits.low) & (mass < limits.high))) look_at(i, i + NATIVE_LANES);
    }
    look_at(i, row.count);
    return few;
}

// The logit and the mass of the id with which the mass of the highest ones reaches `target`, but for rounding. Ids
// below the mass `least` are not looked at.
static std::pair<float, float> place_of_cut(const DrawnRow& row, float floor, float least, double target,
                                            CutScratch& s) {
    const Limits limits = limits_of_cut(row, floor, least, target);
    const size_t few = between(row, floor, limits, s);
    Doubles higher = {};
    if (limits.high < INFINITY)
        row.each(0, row.count, [&](HalfNative logit, HalfNative mass) {
            higher += widened(where((logit >= floor) & (mass >= limits.high), mass));
        });
    double above = sum(higher);
    // Masses that differ by less than a hundredth or so share a bin: only those of the bin of the cut are put in order.
    uint32_t lowest = bin_of(limits.low), highest = lowest;
    for (size_t i = 0; i < few; i++) {
        const uint32_t bin = bin_of(s.masses[i]);
        s.bins[bin] += s.masses[i];
        highest = std::max(highest, bin);
    }
    uint32_t bin = highest;
    while (bin > lowest && above + s.bins[bin] < target) above += s.bins[bin--];
    std::fill(s.bins.begin() + lowest, s.bins.begin() + highest + 1, 0.0);
    s.candidates.clear();
    for (size_t i = 0; i < few; i++)
        if (bin_of(s.masses[i]) == bin) s.candidates.emplace_back(s.logits[i], s.masses[i]);
    std::sort(s.candidates.begin(), s.candidates.end(), [](auto& a, auto& b) { return a.first > b.first; });
    for (const auto& [logit, mass] : s.candidates)
        if ((above += mass) >= target) return {logit, mass};
    return s.candidates.empty() ? std::pair{INFINITY, 0.0f} : s.candidates.back();
}

// Sets `kept` to the ids that top_p keeps of those from the logit `floor` on. Returns whether no rounding of masses,
// which may be wrong by the share `doubt` of them all, could keep others; the ids are right for any first guess then.
static bool find_cut(const DrawnRow& row, float floor, double top_p, double doubt, CutScratch& scratch, Kept& kept) {
    const double total = row.mass_from(floor), target = top_p * total;
    doubt *= total;
    // All ids below this mass together have less than the mass that is cut.
    const float least = std::max(float((total - target) / row.count), 0x1p-126f);
    const auto [lowest, mass] = place_of_cut(row, floor, least, target, scratch);
    Doubles above = {};
    HalfWords more = {}, alike = {};
    row.each(0, row.count, [&, lowest = lowest](HalfNative logit, HalfNative mass) {
        const HalfWords higher = logit > lowest;
        above += widened(where(higher, mass)), more -= higher, alike -= logit == lowest;
    });
    int higher = 0, equal = 0;
    for (int i = 0; i < PAIRS; i++) higher += more[i], equal += alike[i];
    const double missing = target - sum(above);
    const double places = std::max(1.0, std::ceil(missing / mass));
    // Comparisons with NaN are false.
    if (!(places <= equal && places * mass - doubt >= missing)) return false;
    if (higher + places > 1 && (places - 1) * mass + doubt >= missing) return false;
    kept = {lowest, row.count};
    if (places < equal) {
        int left = int(places);
        for (kept.split = 0; left; kept.split++) left -= row.logits[kept.split] == lowest;
    }
    return true;
}

// The first ids whose cumulative mass exceeds the numbers' shares of the mass that is kept.
static void invert(const DrawnRow& row, const Kept& kept, const double* numbers, int64_t count, int64_t* ids,
                   std::vector<int64_t>& reached) {
    reached.clear();
    int64_t total = 0;
    for (int first = 0; first < row.count; first += RUN)
        reached.push_back(total += int64_t(row.units_of(kept, first, std::min(row.count, first + RUN))));
    for (int64_t draw = 0; draw < count; draw++) {
        const int64_t target = std::min(int64_t(numbers[draw] * double(total)), total - 1);
        const size_t run = std::upper_bound(reached.begin(), reached.end() - 1, target) - reached.begin();
        int64_t before = run ? reached[run - 1] : 0;
        int id = int(run * RUN);
        for (; id + 1 < row.count; id++) {
            const float logit = row.logits[id];
            if (logit > kept.lowest || (logit == kept.lowest && id < kept.split)) before += units(row.masses[id]);
            if (before > target) break;
        }
        ids[draw] = id;
    }
}

static void draw(const Draws& draws) {
    CutScratch scratch;
    for (int32_t number = 0; number < draws.rows; number++) {
        const int64_t first = number ? draws.ends[number - 1] : 0, count = draws.ends[number] - first;
        if (!count || !draws.certain[number]) continue;
        const DrawnRow row{draws.logits + number * draws.stride, draws.masses + int64_t(number) * draws.vocabulary,
                           draws.vocabulary};
        Kept kept{draws.floors[number], draws.vocabulary};
        if (draws.top_p[number] < 1.0)
            draws.certain[number] = find_cut(row, kept.lowest, draws.top_p[number], draws.doubt, scratch, kept);
        if (draws.certain[number]) invert(row, kept, draws.numbers + first, count, draws.ids + first, scratch.reached);
    }
}
