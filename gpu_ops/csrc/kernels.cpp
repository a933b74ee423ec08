// SPDX-License-Identifier: Apache-2.0
// Compiled once for the instruction set that the flags name.
#include "kernels.h"

#include "draw.h"
#include "experts.h"
#include "latent.h"
#include "peak.h"
#include "recurrent.h"
#include "top_logits.h"

static void run(Context& context, const AttentionHalf& half, const Tile& tile, float* hidden) {
    ThreadPool::Loan loan(context.threads);
    if (tile.kind == BFLOAT16)
        attention_half<BFloat16>(context, half, tile, hidden);
    else
        attention_half<Float32>(context, half, tile, hidden);
}
static void run(Context& context, const LatentHalf& half, const Tile& tile, float* hidden) {
    ThreadPool::Loan loan(context.threads);
    if (tile.kind == BFLOAT16)
        latent_half<BFloat16>(context, half, tile, hidden);
    else
        latent_half<Float32>(context, half, tile, hidden);
}
static void run(Context& context, const RecurrentHalf& half, const Tile& tile, float* hidden) {
    ThreadPool::Loan loan(context.threads);
    if (tile.kind == BFLOAT16)
        recurrent_half<BFloat16>(context, half, tile, hidden);
    else
        recurrent_half<Float32>(context, half, tile, hidden);
}
static void run(Context& context, const MlpHalf& half, int rows, const float* x, float* result,
                const int32_t* chosen) {
    ThreadPool::Loan loan(context.threads);
    if (half.gate_up.kind == FLOAT32)
        mlp_half<Float32>(context, half, rows, x, result, chosen);
    else
        mlp_half<BFloat16>(context, half, rows, x, result, chosen);
}
static void run(Context& context, const ExpertHalf& half, int rows, const float* x, float* result,
                const int32_t* chosen) {
    ThreadPool::Loan loan(context.threads);
    if (half.experts->gate_up.kind == FLOAT32)
        expert_half<Float32>(context, half, rows, x, result, chosen);
    else
        expert_half<BFloat16>(context, half, rows, x, result, chosen);
}
static void run(Context& context, const Layer& layer, const Tile& tile, float* hidden) {
    if (layer.attention) run(context, *layer.attention, tile, hidden);
    if (layer.latent) run(context, *layer.latent, tile, hidden);
    if (layer.recurrent) run(context, *layer.recurrent, tile, hidden);
    if (layer.mlp) run(context, *layer.mlp, tile.rows, hidden, hidden, tile.adapters);
    if (layer.experts) run(context, *layer.experts, tile.rows, hidden, hidden, tile.adapters);
}

// An exception may leave a meeting of ranks, which only the calling thread enters; none leaves this library.
template <class F>
static int32_t status_of(F&& f) {
    try {
        f();
        return DONE;
    } catch (const GroupError& error) {
        return error.status;
    }
}

extern "C" {

int32_t pontil_abi() { return PONTIL_ABI; }
Context* pontil_open(int32_t threads) {
#if defined(PONTIL_TILES)
    if (!may_use_tiles()) return nullptr;
    // An instruction that is not available crashes the process now rather than in the middle of work.
    TileScope scope;
    (void)scope;
    zero_tile(0);
#endif
    return new Context(threads);
}
void pontil_close(Context* context) { delete context; }
void pontil_borrow(Context* context, uint32_t* cells, int32_t cores, uint32_t mark) {
    context->borrow({cells, cores, mark});
}

RankGroup* pontil_group_open(void* memory, int64_t size, int32_t rank, int32_t ranks, double deadline) {
    return RankGroup::open(static_cast<char*>(memory), size, rank, ranks, deadline);
}
void pontil_group_close(RankGroup* group) { delete group; }
void pontil_join(Context* context, RankGroup* group) { context->group = group; }
int32_t pontil_group_meet(RankGroup* group) {
    return status_of([&] { group->meet(0); });
}
int32_t pontil_group_gather(RankGroup* group, const void* part, int64_t rows, int64_t bytes, void* result) {
    return status_of([&] { group->gather(static_cast<const char*>(part), rows, bytes, static_cast<char*>(result)); });
}
int32_t pontil_group_choose(RankGroup* group, const void* x, int64_t rows, int64_t bytes, const int64_t* owners,
                            void* result) {
    return status_of(
        [&] { group->choose(static_cast<const char*>(x), rows, bytes, owners, static_cast<char*>(result)); });
}
int32_t pontil_group_all_to_all(RankGroup* group, const void* x, const int64_t* counts, int64_t bytes, void* result) {
    const char* from = static_cast<const char*>(x);
    char* to = static_cast<char*>(result);
    auto given = [&](size_t row) { return from + row * bytes; };
    auto taken = [&](size_t row) { return to + row * bytes; };
    return status_of([&] { group->all_to_all(counts, bytes, given, taken); });
}
uint64_t pontil_group_fault(const RankGroup* group) { return group->fault(); }

int32_t pontil_attention_half(Context* context, const AttentionHalf* half, const Tile* tile, float* hidden) {
    return status_of([&] { run(*context, *half, *tile, hidden); });
}
int32_t pontil_latent_half(Context* context, const LatentHalf* half, const Tile* tile, float* hidden) {
    return status_of([&] { run(*context, *half, *tile, hidden); });
}
int32_t pontil_recurrent_half(Context* context, const RecurrentHalf* half, const Tile* tile, float* hidden) {
    return status_of([&] { run(*context, *half, *tile, hidden); });
}
void pontil_take_kept(Context* context, const Layer* layers, int32_t count, const Tile* tile) {
    ThreadPool::Loan loan(context->threads);
    for (const Layer* layer = layers; layer < layers + count; layer++)
        if (layer->recurrent) take_kept(*context, *layer->recurrent, *tile);
}
int32_t pontil_expert_half(Context* context, const ExpertHalf* half, int32_t rows, const float* x, float* result) {
    return status_of([&] { run(*context, *half, rows, x, result, nullptr); });
}
int32_t pontil_mlp_half(Context* context, const MlpHalf* half, int32_t rows, const float* x, float* result) {
    return status_of([&] { run(*context, *half, rows, x, result, nullptr); });
}
int32_t pontil_layers(Context* context, const Layer* layers, int32_t count, const Tile* tile, float* hidden) {
    return status_of([&] {
        for (const Layer* layer = layers; layer < layers + count; layer++) run(*context, *layer, *tile, hidden);
    });
}

void pontil_linear(Context* context, const Matrix* matrix, int32_t rows, const float* x, const float* norm,
                   float epsilon, float* result, int64_t* highest, float* tops) {
    ThreadPool::Loan loan(context->threads);
    if (matrix->kind == FLOAT32)
        linear<Float32>(*context, *matrix, rows, x, norm, epsilon, result, highest, tops);
    else
        linear<BFloat16>(*context, *matrix, rows, x, norm, epsilon, result, highest, tops);
}

void pontil_draw(const Draws* draws) { draw(*draws); }

void pontil_top_logits(const float* logits, int64_t stride, const float* tops, const int32_t* rows, int32_t wanted,
                       int32_t vocabulary, int32_t count, int32_t* pairs) {
    const size_t groups = padded(vocabulary, GROUP) / GROUP;
    for (int i = 0; i < wanted; i++)
        top_logits(logits + rows[i] * stride, tops ? tops + rows[i] * groups : nullptr, vocabulary, count,
                   pairs + 2 * count * i);
}

int64_t pontil_multiply_adds(Context* context, int32_t kind, int64_t rounds) {
    ThreadPool::Loan loan(context->threads);
    std::atomic<int64_t> done{0};
    context->threads.share(context->threads.size(), [&](int first, int end, int) {
        for (; first < end; first++)
            done += kind == FLOAT32 ? multiply_adds<Float32>(rounds) : multiply_adds<BFloat16>(rounds);
    });
    return done;
}

void pontil_read(Context* context, const uint32_t* words, int64_t count) {
    ThreadPool::Loan loan(context->threads);
    const int64_t run = 1 << 16;
    context->threads.share(int((count + run - 1) / run), [&](int first, int end, int) {
        const int64_t last = end * run < count ? end * run : count;
        read_words(words + first * run, size_t(last - first * run));
    });
}
}
