// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts. The rows that chose an expert are brought together, so that its weights are read once for all of
// them. Batch-invariant: a product computes each row alone, and the results of a row are added in the order of its
// ratings.
#pragma once
#include "layer.h"

// The experts of rows [rows][per_token], best first, with their ratings.
struct Choices {
    std::vector<int32_t> experts;
    std::vector<float> ratings;
};

// Turns a router's products [count] into scores, in place; there is memory up to a multiple of 16.
static void score_experts(const ExpertHalf& half, float* x) {
    if (half.scores == SIGMOID) {
        for (int i = 0; i < half.count; i += LANES) store(x + i, sigmoid(load(x + i)));
        return;
    }
    const Floats top = splat(*std::max_element(x, x + half.count));
    float total = 0;
    for (int i = 0; i < half.count; i += LANES) store(x + i, exp2((load(x + i) - top) * LOG2_E));
    for (int i = 0; i < half.count; i++) total += x[i];
    for (int i = 0; i < half.count; i++) x[i] /= total;
}

// Takes the highest of x [count] out, of equal ones the first: those that were `taken` are passed over.
static int take_highest(const float* x, int count, uint8_t* taken) {
    int best = -1;
    for (int i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || x[i] > x[best])) best = i;
    taken[best] = 1;
    return best;
}

// Leaves only experts of the best groups not taken. `sums` holds a number for each group.
static void keep_groups(const ExpertHalf& half, const float* rated, float* sums, uint8_t* taken) {
    const int size = half.count / half.groups;
    std::vector<uint8_t> used(half.count), kept(half.groups);
    for (int group = 0; group < half.groups; group++) {
        sums[group] = 0;
        for (int i = 0; i < half.group_best; i++)
            sums[group] += rated[group * size + take_highest(rated + group * size, size, used.data() + group * size)];
    }
    for (int i = 0; i < half.kept_groups; i++) take_highest(sums, half.groups, kept.data());
    for (int group = 0; group < half.groups; group++)
        if (!kept[group]) memset(taken + group * size, 1, size);
}

// Chooses a row's experts from its router's products; `spare` holds twice as many numbers as there are experts.
static void choose_experts(const ExpertHalf& half, float* products, float* spare, int32_t* experts, float* ratings) {
    const float* rated = products;
    std::vector<uint8_t> taken(half.count);
    score_experts(half, products);
    if (half.bias) {
        for (int i = 0; i < half.count; i++) spare[i] = products[i] + half.bias[i];
        rated = spare;
    }
    if (half.groups > 1) keep_groups(half, rated, spare + half.count, taken.data());
    // Added to the sum of sigmoids, which may all be nearly 0.
    float total = half.scores == SIGMOID ? 1e-20f : 0.0f;
    for (int place = 0; place < half.per_token; place++) {
        experts[place] = take_highest(rated, half.count, taken.data());
        ratings[place] = products[experts[place]];
        total += ratings[place];
    }
    for (int place = 0; place < half.per_token; place++)
        ratings[place] = (half.normalize ? ratings[place] / total : ratings[place]) * half.factor;
}

// The rows x as float32 numbers, as they were rounded.
template <class T>
static const uint32_t* plain_rows(Context& context, const uint32_t* x, int rows, int words, int plain_words) {
    if constexpr (std::is_same_v<T, Float32>) {
        return x;
    } else {
        const size_t cells = size_t(words) * T::PER_WORD;
        float* plain = context.wide.take<float>(size_t(rows + ROWS_BEHIND) * plain_words);
        context.threads.share(rows, [&](int first, int end, int) {
            for (size_t row = first; row < size_t(end); row++)
                for (int i = 0; i < plain_words; i += LANES)
                    store(plain + row * plain_words + i,
                          T::load_active(reinterpret_cast<const typename T::Active*>(x) + row * cells + i));
        });
        return reinterpret_cast<const uint32_t*>(plain);
    }
}

// Rates all rows, which have these adapters; `gates` get the products of the shared expert's gate, if there is one.
template <class T>
static Choices route(Context& context, const ExpertHalf& half, const uint32_t* x, int rows, const int32_t* adapters,
                     float* gates) {
    const size_t stride = padded(half.router.outputs, GROUP);
    const uint32_t* plain = plain_rows<T>(context, x, rows, half.experts->gate_up.words, half.router.words);
    float* products = context.routed.take<float>(rows * stride);
    const Part parts[] = {{&half.router, 0, rows}, {&half.shared_gate, 0, rows}};
    const Finished<Float32> finished[] = {{context, half.router, plain, rows, adapters},
                                          {context, half.shared_gate, plain, rows, adapters}};
    multiply<Float32>(context, parts, half.shared_gate.data ? 2 : 1, plain, rows,
                      [&](int part, int row, int output, float* sums) {
                          finished[part](row, output, sums);
                          if (part)
                              gates[row] = sums[0];
                          else
                              memcpy(products + row * stride + output, sums, GROUP * sizeof(float));
                      });
    const size_t chosen = size_t(rows) * half.per_token;
    Choices choices{std::vector<int32_t>(chosen), std::vector<float>(chosen)};
    context.threads.share(rows, [&](int first, int end, int thread) {
        float* spare = context.own[thread].query.take<float>(2 * half.count);
        for (size_t row = first; row < size_t(end); row++)
            choose_experts(half, products + row * stride, spare, choices.experts.data() + row * half.per_token,
                           choices.ratings.data() + row * half.per_token);
    });
    return choices;
}

// The choices of this rank's experts, one expert after the other: where each is among all choices, and the rows of each
// expert that was chosen.
struct Groups {
    Groups(const ExpertHalf& half, const std::vector<int32_t>& chosen) {
        std::vector<int> ends(half.own + 1);
        auto is_own = [&](int32_t expert) { return expert >= half.first && expert < half.first + half.own; };
        for (int32_t expert : chosen)
            if (is_own(expert)) ends[expert - half.first + 1]++;
        for (int i = 0; i < half.own; i++) {
            if (ends[i + 1]) {
                const MlpHalf& expert = half.experts[i];
                experts.push_back(&expert);
                gate_ups.push_back({&expert.gate_up, ends[i], ends[i + 1], i});
                downs.push_back({&expert.down, ends[i], ends[i + 1], i});
            }
            ends[i + 1] += ends[i];
        }
        places.resize(ends[half.own]);
        for (size_t place = 0; place < chosen.size(); place++)
            if (is_own(chosen[place])) places[ends[chosen[place] - half.first]++] = int(place);
    }
    std::vector<int> places;
    std::vector<const MlpHalf*> experts;
    std::vector<Part> gate_ups, downs;
};

// The results of all choices, [choice][hidden]; only those of this rank's experts are written. The rows of x have these
// adapters; null: none has one.
template <class T>
static float* compute_experts(Context& context, const ExpertHalf& half, const uint32_t* x,
                              const std::vector<int32_t>& chosen, const int32_t* adapters) {
    typedef typename T::Active Active;
    const Groups groups(half, chosen);
    const int count = int(groups.places.size()), parts = int(groups.experts.size());
    const size_t stride = size_t(half.experts->gate_up.words) * T::STEPS;
    const size_t cells = size_t(half.experts->down.words) * T::PER_WORD, size = half.hidden;
    uint32_t* together = context.queries.take<uint32_t>((count + ROWS_BEHIND) * stride);
    Active* inner = context.attended.take<Active>((count + ROWS_BEHIND) * cells);
    float* made = context.heads.take<float>(chosen.size() * size);
    context.threads.share(count, [&](int first, int end, int) {
        for (int i = first; i < end; i++)
            memcpy(together + i * stride, x + groups.places[i] / half.per_token * stride, stride * sizeof *x);
    });
    std::vector<int32_t> of_choices;
    for (int i = 0; adapters && i < count; i++) of_choices.push_back(adapters[groups.places[i] / half.per_token]);
    const int32_t* own = adapters ? of_choices.data() : nullptr;
    clear_padding(inner, count, half.experts->inner, cells);
    const Finished<T> gated(context, groups.gate_ups.data(), parts, together, count, own);
    multiply<T>(context, groups.gate_ups.data(), parts, together, count,
                [&](int part, int row, int output, float* sums) {
                    gated(part, row, output, sums);
                    activate<T>(*groups.experts[part], sums, inner + row * cells + output / 2);
                });
    const auto* activations = reinterpret_cast<const uint32_t*>(inner);
    const Finished<T> finished(context, groups.downs.data(), parts, activations, count, own);
    multiply<T>(context, groups.downs.data(), parts, activations, count,
                [&](int part, int row, int output, float* sums) {
                    const Matrix& down = groups.experts[part]->down;
                    finished(part, row, output, sums);
                    const int some = std::min(int(GROUP), down.outputs - output);
                    memcpy(made + groups.places[row] * size + output, sums, some * sizeof(float));
                });
    return made;
}

// Ranks exchange the results of their experts.
static void exchange_results(Context& context, const ExpertHalf& half, const std::vector<int32_t>& chosen,
                             float* made) {
    if (half.own == half.count) return;
    if (!context.group || half.own * context.group->ranks != half.count) throw GroupError{NOT_JOINED};
    std::vector<int64_t> owners(chosen.begin(), chosen.end());
    for (int64_t& owner : owners) owner /= half.own;
    context.group->choose(reinterpret_cast<const char*>(made), chosen.size(), half.hidden * sizeof(float),
                          owners.data(), reinterpret_cast<char*>(made));
}

// The rows that go through experts together, and which of them this rank brings: all of its tile, or if rows are
// dispatched an equal share of neighbouring ones, or, where each rank has a tile of its own, that one. The tiles' rows
// then stand in the order of ranks.
struct OwnRows {
    OwnRows(const Context& context, const ExpertHalf& half, int tile) : rows(tile), count(tile) {
        if (half.dispatched == NOT_DISPATCHED) return;
        group = context.group;
        if (!group || half.own * group->ranks != half.count) throw GroupError{NOT_JOINED};
        half.dispatched == OWN_TILES ? add_tiles() : take_share();
    }
    // x [rows][bytes], of which each rank has its own rows, becomes whole.
    void join(void* x, size_t bytes) const {
        group->choose(static_cast<const char*>(x), rows, bytes, owners.data(), static_cast<char*>(x));
    }
    RankGroup* group = nullptr;
    int rows;
    // This rank's: the first of them among all, and in its tile, and how many.
    int first = 0, place = 0, count;
    std::vector<int64_t> owners;

  private:
    void take_share() {
        const int share = (rows + group->ranks - 1) / group->ranks;
        first = place = std::min(rows, group->rank * share), count = std::min(rows - first, share);
        for (int row = 0; row < rows; row++) owners.push_back(row / share);
    }
    // All ranks learn how many rows each brings.
    void add_tiles() {
        std::vector<int64_t> counts(group->ranks);
        const int64_t own = count;
        group->gather(reinterpret_cast<const char*>(&own), 1, sizeof own, reinterpret_cast<char*>(counts.data()));
        for (int rank = 0; rank < group->ranks; rank++) {
            if (rank == group->rank) first = int(owners.size());
            owners.insert(owners.end(), counts[rank], rank);
        }
        rows = int(owners.size());
    }
};

// What ranks send each other of a tile's rows: a row goes once to each rank that holds experts of its own, and the
// result of each of its choices comes back. All ranks know what is sent, since they know all choices.
struct Dispatch {
    // `chosen` [rows][per_token] are those of all rows, and so are `of_rows`, if rows have adapters.
    Dispatch(const ExpertHalf& half, const OwnRows& own, const std::vector<int32_t>& chosen, const int32_t* of_rows)
        : there(own.group->ranks * own.group->ranks), back(there.size()) {
        const int ranks = own.group->ranks, rank = own.group->rank, per_token = half.per_token;
        std::vector<std::vector<int>> rows_for(ranks), places_of(ranks);
        std::vector<int> last_row(ranks, -1);
        for (int row = 0, place = 0; row < own.rows; row++)
            for (const int end = place + per_token; place < end; place++) {
                const int owner = int(own.owners[row]), holder = chosen[place] / half.own;
                if (last_row[holder] != row) {
                    last_row[holder] = row, there[owner * ranks + holder]++;
                    if (owner == rank) rows_for[holder].push_back(row - own.first);
                    if (holder == rank)
                        experts.insert(experts.end(), chosen.begin() + end - per_token, chosen.begin() + end);
                    if (holder == rank && of_rows) adapters.push_back(of_rows[row]);
                }
                back[holder * ranks + owner]++;
                if (owner == rank) places_of[holder].push_back(place - own.first * per_token);
                if (holder == rank) made.push_back(int(experts.size()) - end + place);
            }
        for (int other = 0; other < ranks; other++) {
            rows.insert(rows.end(), rows_for[other].begin(), rows_for[other].end());
            places.insert(places.end(), places_of[other].begin(), places_of[other].end());
        }
    }
    // How many rows, and results, go from each rank to each.
    std::vector<int64_t> there, back;
    // This rank's rows in the order in which they go, and the choices and the adapters of all rows that come.
    std::vector<int> rows;
    std::vector<int32_t> experts, adapters;
    // Which of these this rank computes, in the order in which results go, and its own rows' as they come.
    std::vector<int> made, places;
};

// The results of all choices of this rank's rows x, [choice][hidden], which the ranks that hold their experts compute.
// `adapters` are those of all rows, which all ranks know; ranks with tiles of their own compute none of experts.
template <class T>
static float* compute_elsewhere(Context& context, const ExpertHalf& half, const OwnRows& own, const uint32_t* x,
                                const std::vector<int32_t>& chosen, const int32_t* adapters) {
    std::vector<int32_t> of_all(size_t(own.rows) * half.per_token);
    std::copy(chosen.begin(), chosen.end(), of_all.begin() + size_t(own.first) * half.per_token);
    own.join(of_all.data(), half.per_token * sizeof(int32_t));
    const int32_t* of_rows = half.dispatched == SHARES ? adapters : nullptr;
    const Dispatch dispatch(half, own, of_all, of_rows);
    const size_t stride = size_t(half.experts->gate_up.words) * T::STEPS, size = half.hidden;
    uint32_t* here = context.wide.take<uint32_t>(dispatch.experts.size() / half.per_token * stride);
    own.group->all_to_all(
        dispatch.there.data(), stride * sizeof *x, [&](size_t i) { return x + dispatch.rows[i] * stride; },
        [&](size_t i) { return here + i * stride; });
    const int32_t* arrived = of_rows ? dispatch.adapters.data() : nullptr;
    const float* made = compute_experts<T>(context, half, here, dispatch.experts, arrived);
    float* results = context.routed.take<float>(dispatch.places.size() * size);
    own.group->all_to_all(
        dispatch.back.data(), size * sizeof *made, [&](size_t i) { return made + dispatch.made[i] * size; },
        [&](size_t i) { return results + dispatch.places[i] * size; });
    return results;
}

// The sum of a row's results [per_token][hidden] by their ratings, best first: of all its experts, or of this rank's.
static void add_by_ratings(const ExpertHalf& half, const Choices& choices, size_t row, const float* made, float* to) {
    const size_t size = half.hidden, first = row * half.per_token;
    std::vector<size_t> places;
    for (size_t place = first; place < first + half.per_token; place++) {
        const int expert = choices.experts[place] - half.first;
        if (!half.partial || (expert >= 0 && expert < half.own)) places.push_back(place);
    }
    if (places.empty()) memset(to, 0, size * sizeof *to);
    for (size_t i = 0; i < size && !places.empty(); i += LANES) {
        Floats total = load(made + places[0] * size + i) * splat(choices.ratings[places[0]]);
        for (size_t n = 1; n < places.size(); n++)
            total = total + load(made + places[n] * size + i) * splat(choices.ratings[places[n]]);
        store(to + i, total);
    }
}

template <class T>
static void expert_half(Context& context, const ExpertHalf& half, int rows, const float* from, float* result,
                        const int32_t* adapters) {
    const size_t size = half.hidden;
    float* shared = nullptr;
    if (half.shared.gate_up.data && rows) {
        shared = context.shared.take<float>(rows * size);
        memset(shared, 0, rows * size * sizeof(float));
        mlp_half<T>(context, half.shared, rows, from, shared, adapters);
    }
    const OwnRows own(context, half, rows);
    if (!own.rows) return;
    const size_t first = own.place * size;
    float* to = result + first;
    const uint32_t* x = take_rows<T>(context, from + first, own.count, half.hidden, half.before, half.epsilon,
                                     half.experts->gate_up.words);
    std::vector<float> gates(own.count);
    const Choices choices =
        route<T>(context, half, x, own.count, adapters ? adapters + own.place : nullptr, gates.data());
    float* made = own.group ? compute_elsewhere<T>(context, half, own, x, choices.experts, adapters)
                            : compute_experts<T>(context, half, x, choices.experts, adapters);
    auto add_all = [&](auto&& sum) {
        add_rows(context, own.count, half.hidden, half.after, half.epsilon, to, [&](size_t row, float* total) {
            sum(row, total);
            const Floats gate = half.shared_gate.data ? sigmoid(splat(gates[row])) : splat(1.0f);
            for (size_t i = 0; shared && i < size; i += LANES)
                store(total + i, load(total + i) + load(shared + first + row * size + i) * gate);
            return total;
        });
    };
    if (!half.partial) {
        if (!own.group) exchange_results(context, half, choices.experts, made);
        add_all([&](size_t row, float* total) { add_by_ratings(half, choices, row, made, total); });
        if (half.dispatched == SHARES) own.join(result, size * sizeof *result);
        return;
    }
    const PartialRows parts(context, rows, half.hidden);
    context.threads.share(rows, [&](int first, int end, int) {
        for (size_t row = first; row < size_t(end); row++)
            add_by_ratings(half, choices, row, made, parts.own() + row * size);
    });
    parts.complete();
    add_all([&](size_t row, float* total) { parts.sum(row, total); });
}
