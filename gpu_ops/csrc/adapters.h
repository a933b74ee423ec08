// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters (Hu et al., 2021) of some of a product's rows: y += expand (shrink x). A row's sum is added in one
// order, whatever adapters the other rows have.
#pragma once
#include "products.h"

// Rows of one adapter that are multiplied together: more are shared out over threads.
enum { ADAPTED_ROWS = 32 };

// What finishes the sums of a product, or of those of equal matrices that have some of the rows each: the bias, and the
// adapters of the rows.
template <class T>
class Finished {
  public:
    // `chosen` [rows] has each row's adapter, or less than 0; null: no row has one. `products` are read until the end.
    Finished(Context& context, const Part* products, int count, const uint32_t* x, int rows, const int32_t* chosen)
        : products(products), chosen(chosen) {
        if (chosen) shrink_rows(context, count, x, rows);
    }
    Finished(Context& context, const Matrix& matrix, const uint32_t* x, int rows, const int32_t* chosen)
        : alone{&matrix, 0, rows}, products(&alone), chosen(chosen && matrix.adapters ? chosen : nullptr) {
        if (this->chosen) shrink_rows(context, 1, x, rows);
    }
    Finished(const Finished&) = delete;

    void operator()(int row, int output, float* sums) const { (*this)(0, row, output, sums); }
    void operator()(int product, int row, int output, float* sums) const {
        const Part& part = products[product];
        const Matrix& matrix = *part.matrix;
        add_bias(matrix, output, sums);
        const Adapter* adapter = chosen ? adapter_of(part, row) : nullptr;
        if (!adapter) return;
        // Both panels at once: the sum of one waits for itself at each step. A panel behind the last is padding.
        const int rank = adapter->rank, words = rank / T::PER_WORD;
        const int own = matrix.first_panel + output / LANES, *parts = matrix.adapters->parts + own;
        const auto* weights = static_cast<const uint32_t*>(adapter->expand) + part.place * adapter->expand_apart +
                              size_t(own) * words * LANES;
        const typename T::Active* from = shrunk.data() + row * stride;
        const typename T::Active *x = from + parts[0] * rank, *y = from + parts[1] * rank;
        // The first row of an adapter's has the next group's panels read ahead, which lie behind these.
        if (!row || chosen[row - 1] != chosen[row])
            for (int word = 2 * words; word < 4 * words; word++) __builtin_prefetch(weights + word * LANES, 0, 3);
        Floats first{}, second{};
        for (int word = 0; word < words; word++, weights += LANES) {
            const Words here = load_words(weights), there = load_words(weights + size_t(words) * LANES);
            for (int step = 0; step < T::STEPS; step++) {
                const int entry = word * T::STEPS + step;
                first = T::dot(first, T::part(here, step), splat(entry_of(x, entry)));
                second = T::dot(second, T::part(there, step), splat(entry_of(y, entry)));
            }
        }
        store(sums, load(sums) + first);
        store(sums + LANES, load(sums + LANES) + second);
    }

  private:
    static uint32_t entry_of(const typename T::Active* x, int entry) {
        uint32_t found;
        memcpy(&found, reinterpret_cast<const uint32_t*>(x) + entry, sizeof found);
        return found;
    }
    const Adapter* adapter_of(const Part& part, int row) const {
        const Adapters* adapters = part.matrix->adapters;
        if (!adapters || chosen[row] < 0 || chosen[row] >= adapters->count) return nullptr;
        const Adapter* one = adapters->slots + chosen[row];
        return one->rank ? one : nullptr;
    }
    // Multiplies runs of rows of one product and one adapter with the first matrix of that.
    void shrink_rows(Context& context, int count, const uint32_t* x, int rows) {
        std::vector<Matrix> matrices;
        std::vector<Part> runs;
        for (const Part* part = products; part < products + count; part++)
            for (int row = part->row, end, last = row + part->rows; row < last; row = end) {
                const Adapter* adapter = adapter_of(*part, row);
                for (end = row + 1; end < last && end < row + ADAPTED_ROWS && chosen[end] == chosen[row];) end++;
                if (!adapter) continue;
                matrices.push_back(adapter->shrink);
                matrices.back().data += part->place * adapter->shrink_apart;
                runs.push_back({nullptr, row, end - row});
                stride = std::max(stride, size_t(padded(adapter->shrink.outputs, LANES)));
            }
        if (runs.empty()) {
            chosen = nullptr;
            return;
        }
        for (size_t i = 0; i < runs.size(); i++) runs[i].matrix = &matrices[i];
        shrunk.resize(rows * stride);
        multiply<T>(context, runs.data(), int(runs.size()), x, rows, [&](int run, int row, int output, float* sums) {
            for (int i = 0; i < GROUP && output + i < runs[run].matrix->outputs; i += LANES)
                T::store_active(shrunk.data() + row * stride + output + i, load(sums + i));
        });
    }
    const Part alone{};
    const Part* products;
    const int32_t* chosen;
    size_t stride = 0;
    std::vector<typename T::Active> shrunk;
};
