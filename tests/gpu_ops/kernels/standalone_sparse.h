// SPDX-License-Identifier: Apache-2.0
// A layer with latent attention and experts for standalone.cpp, by the kernels and by plain loops.
#pragma once
#include <algorithm>
#include <memory>
#include <numeric>

#include "standalone_weights.h"

// A random layer with latent attention and experts, of which a text of LENGTH positions is computed: all its weights are
// numbers, and every row chooses from the router's sigmoids.
struct SparseLayer {
    enum { LENGTH = 70, HEADS = 51, RANK = 48, QUERY = 32, KEY = 16, TURNED = 16, VALUE = 16, HIDDEN = 48, BLOCKS = 9 };
    enum { EXPERTS = 5, CHOSEN = 2, INNER = 32, DIM = RANK + TURNED };
    explicit SparseLayer(int kind)
        : kind(kind), compress(kind, DIM, HIDDEN, 0, false), down(kind, QUERY, HIDDEN, 0, false),
          query(kind, HEADS * (KEY + TURNED), QUERY, 0, false), out(kind, HIDDEN, HEADS * VALUE, 0, false),
          router(FLOAT32, EXPERTS, HIDDEN, 0, false), before(random_numbers(HIDDEN)), query_norm(random_numbers(QUERY)),
          key_norm(random_numbers(RANK)), x(random_numbers(LENGTH * HIDDEN)) {
        for (int head = 0; head < HEADS; head++) {
            absorb.emplace_back(new Weight(kind, RANK, KEY, 0, false));
            expand.emplace_back(new Weight(kind, VALUE, RANK, 0, false));
            absorbing.push_back(absorb[head]->matrix), expanding.push_back(expand[head]->matrix);
        }
        for (int i = 0; i < EXPERTS; i++) {
            gate_ups.emplace_back(new Weight(kind, 2 * INNER, HIDDEN, 0, false));
            downs.emplace_back(new Weight(kind, HIDDEN, INNER, 0, false));
            experts.push_back({gate_ups[i]->matrix, downs[i]->matrix, nullptr, nullptr, 0, 0, 0, HIDDEN, INNER, SILU});
        }
        for (int position = 0; position < LENGTH; position++)
            for (int i = 0; i < TURNED / 2; i++) {
                cosines.push_back(float(std::cos(position / (i + 1.0))));
                sines.push_back(float(std::sin(position / (i + 1.0))));
            }
    }

    Reals computed(Context* context, const std::vector<int>& counts) const {
        const LatentHalf latent{compress.matrix, down.matrix, query.matrix, out.matrix, absorbing.data(),
                                expanding.data(), before.data(), nullptr, query_norm.data(), key_norm.data(),
                                {cosines.data(), sines.data(), TURNED, 1}, 1e-6f, 1e-6f, 0.2f, HIDDEN, HEADS, RANK, KEY,
                                VALUE, 0, 0};
        ExpertHalf sparse{};
        sparse.router = router.matrix, sparse.experts = experts.data(), sparse.before = before.data();
        sparse.epsilon = 1e-6f, sparse.factor = 1.5f, sparse.hidden = HIDDEN, sparse.count = sparse.own = EXPERTS;
        sparse.per_token = CHOSEN, sparse.scores = SIGMOID, sparse.normalize = 1, sparse.groups = 1;
        std::vector<uint32_t> pool(size_t(BLOCKS) * 8 * DIM, 0xffffffff);
        int32_t blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) blocks[i] = (4 * i + 3) % BLOCKS;
        Reals hidden = x;
        int start = 0;
        for (int count : counts) {
            const Span span{blocks, 0, start, count, 0};
            const Tile tile{pool.data(), &span, 1, count, kind, 1, 1, 1, 8, DIM, CELLS_PLAIN, 0};
            const Layer layer{.latent = &latent, .experts = &sparse};
            pontil_layers(context, &layer, 1, &tile, hidden.data() + size_t(start) * HIDDEN);
            start += count;
        }
        return hidden;
    }

    Numbers expected() const {
        Numbers hidden(x.begin(), x.end());
        std::vector<Numbers> stored;
        for (int row = 0; row < LENGTH; row++) {
            double* here = hidden.data() + row * HIDDEN;
            Numbers one(here, here + HIDDEN);
            norm(one.data(), before, 1e-6);
            Numbers latent = compress.of(one.data()), below = down.of(one.data());
            norm(latent.data(), key_norm, 1e-6), norm(below.data(), query_norm, 1e-6);
            turn_pairs(latent.data() + RANK, row);
            stored.push_back(latent);
            const Numbers made = out.of(attended(query.of(below.data()), stored).data());
            for (int i = 0; i < HIDDEN; i++) here[i] += made[i];
            add_experts(here);
        }
        return hidden;
    }

    void turn_pairs(double* x, int position) const {
        const Numbers old(x, x + TURNED);
        for (int half = TURNED / 2, i = 0; i < half; i++) {
            const double c = cosines[position * half + i], s = sines[position * half + i];
            x[i] = old[2 * i] * c - old[2 * i + 1] * s, x[half + i] = old[2 * i + 1] * c + old[2 * i] * s;
        }
    }
    // The values of the last row's heads, [heads][value].
    Numbers attended(Numbers queries, const std::vector<Numbers>& stored) const {
        Numbers values;
        for (int head = 0; head < HEADS; head++) {
            double* asked = queries.data() + head * (KEY + TURNED);
            turn_pairs(asked + KEY, int(stored.size()) - 1);
            Numbers q = absorb[head]->of(asked), sums(RANK);
            q.insert(q.end(), asked + KEY, asked + KEY + TURNED);
            double total = 0;
            for (const Numbers& key : stored) {
                const double weight = std::exp(0.2 * std::inner_product(q.begin(), q.end(), key.begin(), 0.0));
                total += weight;
                for (int i = 0; i < RANK; i++) sums[i] += weight * key[i];
            }
            for (double& sum : sums) sum /= total;
            const Numbers value = expand[head]->of(sums.data());
            values.insert(values.end(), value.begin(), value.end());
        }
        return values;
    }
    void add_experts(double* hidden) const {
        Numbers one(hidden, hidden + HIDDEN), scores;
        norm(one.data(), before, 1e-6);
        for (double product : router.of(one.data())) scores.push_back(1 / (1 + std::exp(-product)));
        std::vector<int> order(EXPERTS);
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
        double total = 0;
        for (int place = 0; place < CHOSEN; place++) total += scores[order[place]];
        for (int place = 0; place < CHOSEN; place++) {
            const Numbers both = gate_ups[order[place]]->of(one.data());
            Numbers inner(INNER);
            for (int i = 0; i < INNER; i++) {
                const double gate = both[i / 16 * 32 + i % 16], up = both[i / 16 * 32 + 16 + i % 16];
                inner[i] = gate * up / (1 + std::exp(-gate));
            }
            const Numbers made = downs[order[place]]->of(inner.data());
            for (int i = 0; i < HIDDEN; i++) hidden[i] += 1.5 * scores[order[place]] / total * made[i];
        }
    }

    int kind;
    Weight compress, down, query, out, router;
    std::vector<std::unique_ptr<Weight>> absorb, expand, gate_ups, downs;
    std::vector<Matrix> absorbing, expanding;
    std::vector<MlpHalf> experts;
    Reals before, query_norm, key_norm, x, cosines, sines;
};
