// SPDX-License-Identifier: Apache-2.0
// Checks the kernels without Python, so that they run wherever a compiler and an emulator do: products of every kind of
// weights and both halves of a layer, against plain loops in double precision, and to the bit against themselves in
// other divisions into rows and threads; and draws and the highest logits against those after sorting. Prints a line for
// each check that fails, and at last their number.
#include "kernels.cpp"

#include <cstdarg>
#include <cstdio>
#include <numeric>

#include "standalone_sparse.h"

static int checks = 0, failures = 0;

__attribute__((format(printf, 2, 3))) static void check(bool right, const char* text, ...) {
    checks++;
    if (right) return;
    failures++;
    va_list rest;
    va_start(rest, text);
    vprintf(text, rest);
    va_end(rest);
    printf("\n");
}

static bool same_bits(const float* a, const float* b, size_t count) { return memcmp(a, b, count * sizeof *a) == 0; }

// The length of the difference, relative to that of what was added to `base`.
static double error(const Reals& found, const Numbers& expected, const Reals& base) {
    double off = 0, whole = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        off += (found[i] - expected[i]) * (found[i] - expected[i]);
        whole += (expected[i] - base[i]) * (expected[i] - base[i]);
    }
    return std::sqrt(off / whole);
}

static const float* or_null(const Reals& values) { return values.empty() ? nullptr : values.data(); }

// The contexts have 1 and 3 threads.
static void check_linear(Context* const (&contexts)[2], int kind, int outputs, int inputs, int group, bool normed,
                         bool by_table = false) {
    enum { ROWS = 47 };
    const Weight weight(kind, outputs, inputs, group, inputs % 32 == 0, by_table);
    const size_t stride = padded(outputs, GROUP);
    const Reals x = random_numbers(size_t(ROWS) * inputs), norms = random_numbers(normed ? inputs : 0);
    Reals whole(ROWS * stride), some(ROWS * stride), real;
    std::vector<int64_t> highest(ROWS), again(ROWS);
    Reals tops(ROWS * stride / GROUP);
    pontil_linear(contexts[0], &weight.matrix, ROWS, x.data(), or_null(norms), 1e-6f, whole.data(), highest.data(),
                  tops.data());
    Numbers expected;
    bool first = true;
    for (int row = 0; row < ROWS; row++) {
        Numbers input(x.begin() + row * inputs, x.begin() + (row + 1) * inputs);
        norm(input.data(), norms, 1e-6);
        if (kind != FLOAT32)
            for (double& one : input) one = rounded(float(one));
        if (kind >= NIBBLES) round_to_integers(input);
        const Numbers made = weight.of(input.data());
        expected.insert(expected.end(), made.begin(), made.end());
        const float* here = whole.data() + row * stride;
        real.insert(real.end(), here, here + outputs);
        first = first && highest[row] == std::max_element(here, here + outputs) - here;
        for (int group = 0; group * GROUP < outputs; group++)
            first = first && tops[row * stride / GROUP + group] ==
                                 *std::max_element(here + group * GROUP, here + std::min((group + 1) * GROUP, outputs));
    }
    const char* name[] = {"float32", "bfloat16", "nibbles", "bytes"};
    const double off = error(real, expected, Reals(real.size()));
    // A number on the border between two of bfloat16 may be rounded to the other one after a norm.
    const double most = normed && kind != FLOAT32 ? 1e-3 : 2e-6;
    check(off < most, "%s [%d, %d], norm %d: off by %.1e", name[kind], outputs, inputs, normed, off);
    check(first, "%s [%d, %d]: not the first of the highest outputs", name[kind], outputs, inputs);
    for (Context* context : contexts)
        for (int count : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 16, 32, int(ROWS)}) {
            const int from = (ROWS - count) / 2;
            pontil_linear(context, &weight.matrix, count, x.data() + from * inputs, or_null(norms), 1e-6f, some.data(),
                          again.data(), tops.data());
            check(same_bits(some.data(), whole.data() + from * stride, count * stride) &&
                      std::equal(again.begin(), again.begin() + count, highest.begin() + from),
                  "%s [%d, %d]: the bits of %d rows with %d threads are others", name[kind], outputs, inputs, count,
                  context->threads.size());
        }
}

// A random layer of which a text of LENGTH positions is computed.
struct Shape {
    int heads, kv_heads, dim, hidden, inner, block_size, window, activation;
    bool all_norms;
    int cells = CELLS_PLAIN;
};

struct SmallLayer {
    enum { LENGTH = 83, LAYERS = 2, LAYER = 1, BLOCKS = 20 };
    SmallLayer(int kind, const Shape& shape)
        : kind(kind), shape(shape), qkv(kind, (shape.heads + 2 * shape.kv_heads) * shape.dim, shape.hidden, 0, true),
          out(kind, shape.hidden, shape.heads * shape.dim, 0, false),
          gate_up(kind, 2 * shape.inner, shape.hidden, 0, false), down(kind, shape.hidden, shape.inner, 0, false),
          before(random_numbers(shape.hidden)), after(random_numbers(shape.all_norms ? shape.hidden : 0)),
          query(random_numbers(shape.all_norms ? shape.dim : 0)), key(random_numbers(query.size())),
          x(random_numbers(size_t(LENGTH) * shape.hidden)) {
        for (int position = 0; position < LENGTH; position++)
            for (int i = 0; i < shape.dim / 2; i++) {
                const double angle = position * std::pow(1e4, -2.0 * i / shape.dim);
                cosines.push_back(float(std::cos(angle))), sines.push_back(float(std::sin(angle)));
            }
    }

    Reals computed(Context* context, const std::vector<int>& counts) const {
        const AttentionHalf attention{qkv.matrix, out.matrix, or_null(before), or_null(after), or_null(query),
                                      or_null(key), nullptr, {cosines.data(), sines.data(), shape.dim, 0}, 1e-6f, 0.2f,
                                      shape.hidden, shape.heads, shape.kv_heads, shape.dim, LAYER, shape.window};
        const MlpHalf mlp{gate_up.matrix, down.matrix, or_null(before), or_null(after), 1e-6f, 0, 0, shape.hidden,
                          shape.inner, shape.activation};
        // All bits of a cell that was never written make NaN.
        const size_t slots = size_t(BLOCKS) * LAYERS * 2 * shape.kv_heads * shape.block_size;
        const size_t words = shape.cells ? shape.dim / 4 + 1 : kind == FLOAT32 ? shape.dim : shape.dim / 2;
        std::vector<uint32_t> pool(slots * words, 0xffffffff);
        int32_t blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) blocks[i] = (7 * i + 3) % BLOCKS;
        Reals hidden = x;
        int start = 0;
        for (int count : counts) {
            const Span span{blocks, 0, start, count, 0};
            const Tile tile{pool.data(), &span, 1, count, kind, LAYERS, 2, shape.kv_heads, shape.block_size, shape.dim,
                            shape.cells, 0};
            float* rows = hidden.data() + size_t(start) * shape.hidden;
            pontil_attention_half(context, &attention, &tile, rows);
            pontil_mlp_half(context, &mlp, count, rows, rows);
            start += count;
        }
        return hidden;
    }

    Numbers expected() const {
        Numbers hidden(x.begin(), x.end());
        std::vector<Numbers> heads;
        for (int row = 0; row < LENGTH; row++) {
            Numbers one(hidden.begin() + row * shape.hidden, hidden.begin() + (row + 1) * shape.hidden);
            norm(one.data(), before, 1e-6);
            heads.push_back(qkv.of(one.data()));
            for (int head = 0; head < shape.heads + shape.kv_heads; head++)
                place(heads[row].data() + head * shape.dim, head < shape.heads ? query : key, row);
            add(hidden.data() + row * shape.hidden, out.of(attended(heads, row).data()));
        }
        for (int row = 0; row < LENGTH; row++) {
            Numbers one(hidden.begin() + row * shape.hidden, hidden.begin() + (row + 1) * shape.hidden);
            norm(one.data(), before, 1e-6);
            const Numbers both = gate_up.of(one.data());
            Numbers inner(shape.inner);
            for (int i = 0; i < shape.inner; i++) {
                const double gate = both[i / 16 * 32 + i % 16], up = both[i / 16 * 32 + 16 + i % 16];
                const double gelu = 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate)));
                inner[i] = gate * up * (shape.activation == SILU ? 1 / (1 + std::exp(-gate)) : gelu);
            }
            add(hidden.data() + row * shape.hidden, down.of(inner.data()));
        }
        return hidden;
    }

    void place(double* head, const Reals& weights, int position) const {
        norm(head, weights, 1e-6);
        for (int half = shape.dim / 2, i = 0; i < half; i++) {
            const double a = head[i], b = head[half + i];
            const double c = cosines[position * half + i], s = sines[position * half + i];
            head[i] = a * c - b * s, head[half + i] = b * c + a * s;
        }
    }
    // The queries of a row, answered by the keys and values up to it, [heads][dim].
    Numbers attended(const std::vector<Numbers>& all, int row) const {
        Numbers made(size_t(shape.heads) * shape.dim);
        for (int head = 0; head < shape.heads; head++) {
            const int shared = head / (shape.heads / shape.kv_heads);
            const size_t key_at = (shape.heads + shared) * shape.dim, value_at = key_at + shape.kv_heads * shape.dim;
            const double* q = all[row].data() + head * shape.dim;
            double total = 0;
            for (int seen = shape.window ? std::max(0, row + 1 - shape.window) : 0; seen <= row; seen++) {
                double score = 0;
                for (int i = 0; i < shape.dim; i++) score += q[i] * all[seen][key_at + i];
                const double weight = std::exp(0.2 * score);
                total += weight;
                for (int i = 0; i < shape.dim; i++) made[head * shape.dim + i] += weight * all[seen][value_at + i];
            }
            for (int i = 0; i < shape.dim; i++) made[head * shape.dim + i] /= total;
        }
        return made;
    }
    void add(double* to, Numbers made) const {
        norm(made.data(), after, 1e-6);
        for (int i = 0; i < shape.hidden; i++) to[i] += made[i];
    }

    int kind;
    Shape shape;
    Weight qkv, out, gate_up, down;
    Reals before, after, query, key, x, cosines, sines;
};

static void check_layer(Context* const (&contexts)[2], int kind, const Shape& shape) {
    const SmallLayer layer(kind, shape);
    const Reals whole = layer.computed(contexts[0], {SmallLayer::LENGTH});
    const double off = error(whole, layer.expected(), layer.x);
    const double most = shape.cells ? 4e-2 : kind == FLOAT32 ? 2e-6 : 1e-2;
    check(off < most, "layer of kind %d, heads of %d, cells %d: off by %.1e", kind, shape.dim, shape.cells, off);
    for (Context* context : contexts)
        for (const std::vector<int>& counts : {std::vector<int>{83}, {1, 40, 1, 1, 29, 11}, {82, 1}}) {
            const Reals found = layer.computed(context, counts);
            check(same_bits(found.data(), whole.data(), whole.size()),
                  "layer of kind %d, heads of %d: in %zu tiles with %d threads its bits are others", kind, shape.dim,
                  counts.size(), context->threads.size());
        }
}

static void check_sparse_layer(Context* const (&contexts)[2], int kind) {
    const SparseLayer layer(kind);
    const Reals whole = layer.computed(contexts[0], {SparseLayer::LENGTH});
    const double off = error(whole, layer.expected(), layer.x);
    check(off < (kind == FLOAT32 ? 2e-6 : 2e-2), "sparse layer of kind %d: off by %.1e", kind, off);
    for (Context* context : contexts)
        for (const std::vector<int>& counts : {std::vector<int>{70}, {1, 40, 1, 1, 16, 11}}) {
            const Reals found = layer.computed(context, counts);
            check(same_bits(found.data(), whole.data(), whole.size()),
                  "sparse layer of kind %d: in %zu tiles with %d threads its bits are others", kind, counts.size(),
                  context->threads.size());
        }
}

// `order` are all ids, the highest first.
static void check_top(const float* logits, const std::vector<int>& order) {
    enum { COUNT = 8 };
    int32_t found[COUNT][2], by_groups[COUNT][2], missing = -1;
    const int size = int(order.size());
    Reals tops;
    for (int id = 0; id < size; id += GROUP)
        tops.push_back(*std::max_element(logits + id, logits + std::min(id + GROUP, size)));
    const int32_t first = 0;
    pontil_top_logits(logits, 0, nullptr, &first, 1, size, COUNT, found[0]);
    pontil_top_logits(logits, 0, tops.data(), &first, 1, size, COUNT, by_groups[0]);
    check(!memcmp(found, by_groups, sizeof found), "of %d logits others are the highest by groups", size);
    for (size_t i = 0; i < COUNT; i++) {
        const bool there = i < order.size();
        const float logit = there ? logits[order[i]] + 0.0f : 0.0f;
        check(found[i][0] == (there ? order[i] : -1) && !memcmp(&found[i][1], there ? (void*)&logit : &missing, 4),
              "of %zu logits another one is number %zu", order.size(), i);
    }
}

// Logits of which some are equal; their probabilities; and the ids that top_p keeps, found by sorting.
static void check_draws(int vocabulary, float grain, double top_p) {
    enum { ROWS = 3, NUMBERS = 50 };
    Reals logits = random_numbers(size_t(ROWS) * vocabulary), masses, floors(ROWS, -INFINITY);
    for (float& one : logits) one = std::floor(4 * one / grain) * grain;
    logits[vocabulary / 2] = -INFINITY;
    Numbers limits(ROWS, top_p), numbers;
    std::vector<int64_t> ends, expected, found(ROWS * NUMBERS);
    for (int row = 0; row < ROWS; row++) {
        const float* own = logits.data() + row * vocabulary;
        double whole = 0;
        for (int id = 0; id < vocabulary; id++) whole += std::exp(double(own[id]));
        for (int id = 0; id < vocabulary; id++) masses.push_back(float(std::exp(double(own[id])) / whole));
        const float* mass = masses.data() + row * vocabulary;
        std::vector<int> order(vocabulary);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return own[a] > own[b]; });
        check_top(own, order);
        double total = 0, reached = 0;
        for (int id = 0; id < vocabulary; id++) total += mass[id];
        std::vector<int64_t> kept(vocabulary), cumulative;
        for (int id : order) {
            if (reached >= top_p * total) break;
            reached += mass[id], kept[id] = int64_t(std::ldexp(double(mass[id]), 48));
        }
        std::partial_sum(kept.begin(), kept.end(), std::back_inserter(cumulative));
        for (int i = 0; i < NUMBERS; i++) {
            numbers.push_back(i / double(NUMBERS));
            const int64_t share = int64_t(numbers.back() * double(cumulative.back()));
            expected.push_back(std::upper_bound(cumulative.begin(), cumulative.end(), share) - cumulative.begin());
        }
        ends.push_back(int64_t(numbers.size()));
    }
    std::vector<uint8_t> certain(ROWS, 1);
    const Draws draws{logits.data(), masses.data(), floors.data(), limits.data(), numbers.data(), ends.data(),
                      found.data(), certain.data(), 0x1p-40, vocabulary, ROWS, vocabulary};
    pontil_draw(&draws);
    check(std::count(certain.begin(), certain.end(), 1) == ROWS && found == expected,
          "draws from %d ids, in steps of %g, top_p %g: others than after sorting", vocabulary, grain, top_p);
}

int main() {
    Context* contexts[] = {pontil_open(1), pontil_open(3)};
    for (int kind : {FLOAT32, BFLOAT16, NIBBLES, BYTES})
        for (bool normed : {false, true}) {
            check_linear(contexts, kind, 77, 176, kind >= NIBBLES ? 16 : 0, normed);
            check_linear(contexts, kind, 160, 96, kind >= NIBBLES ? 32 : 0, normed);
            check_linear(contexts, kind, 9, 48, 0, normed);
            if (kind == NIBBLES) check_linear(contexts, kind, 77, 176, 16, normed, true);
        }
    for (int kind : {FLOAT32, BFLOAT16}) {
        check_layer(contexts, kind, {6, 2, 32, 80, 96, 16, 70, SILU, true});
        check_layer(contexts, kind, {3, 3, 48, 64, 80, 8, 0, GELU_TANH, false});
        check_sparse_layer(contexts, kind);
        for (int cells : {CELLS_INT8, CELLS_FP8}) {
            check_layer(contexts, kind, {6, 2, 32, 80, 96, 16, 70, SILU, true, cells});
            check_layer(contexts, kind, {3, 3, 48, 64, 80, 8, 0, GELU_TANH, false, cells});
        }
    }
    for (int vocabulary : {2, 7, 300, 5001})
        for (float grain : {1e-6f, 0.5f})
            for (double top_p : {1.0, 0.9237, 0.5119, 1e-9}) check_draws(vocabulary, grain, top_p);
    for (Context* context : contexts) pontil_close(context);
    printf("%d of %d checks failed\n", failures, checks);
    return failures ? 1 : 0;
}
