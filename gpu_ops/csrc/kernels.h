// SPDX-License-Identifier: Apache-2.0
// The C interface. gpu_ops/kernels/weights/structures.py repeats these structures: change both, and ABI with them.
#pragma once
#include <cstdint>

extern "C" {

enum { PONTIL_ABI = 22 };
// Types of numbers in a matrix, the first two also in activations and in the KV pool. The others are quantized levels:
// of 4 bits without a sign, or places in a table, of 8 bits with a sign, and floats of 8 bits (e4m3); then blocks of
// 256 inputs with levels of 4 bits, and of 6.
enum Kind : int32_t { FLOAT32 = 0, BFLOAT16 = 1, NIBBLES = 2, BYTES = 3, EIGHTS = 4, FOURS = 5, SIXES = 6 };
// Cells of the KV pool: numbers of a tile's kind, or 8 bits with scales (scaled_keys.h): whole numbers, or e4m3.
enum Cells : int32_t { CELLS_PLAIN = 0, CELLS_INT8 = 1, CELLS_FP8 = 2 };
// CLAMPED is silu of alpha times the gate, by one more than the up, both within a limit.
enum Activation : int32_t { SILU = 0, GELU_TANH = 1, CLAMPED = 2 };
enum Scores : int32_t { SOFTMAX = 0, SIGMOID = 1 };
// The rows that a rank sends to their experts.
enum Dispatched : int32_t { NOT_DISPATCHED = 0, SHARES = 1, OWN_TILES = 2 };
// Results of a call in which ranks meet: done; a rank has noticed a fault; more rows than the shared memory holds; the
// sizes are not those of this rank of this group.
enum Status : int32_t { DONE = 0, FAULTY = 1, TOO_LARGE = 2, NOT_JOINED = 3 };
// Faults of a rank: its process has ended; it did not come in time; it came with another call.
enum Fault : int32_t { ENDED = 1, LATE = 2, ELSEWHERE = 3 };

// A weight [outputs, inputs], packed into groups of 32 outputs: [group][word][panel of 2][16 outputs] words of 32 bits.
// A word holds the inputs of one output that are multiplied together: one float32, or two bfloat16, the earlier one in
// the low half. Outputs are padded to whole groups and `words` to a multiple of 16, with zeros. Only where a matrix of
// floats says `odd`, the last group has one panel: [word][16 outputs].
//
// For levels, a word holds 4 or 8 inputs: see quantized.h. `scales` [group][words / scale_words][panel of 2][16] has a
// scale in the low half and an offset in the high half, both whole numbers of 16 bits, for the inputs of so many words
// of activations. A weight is scale * level / 128, rounded, plus offset, in the unit of its output. It has 12 bits
// besides its sign, so that 64 products with activations of 13 bits sum to less than 2^31. With a `table` the 4 bits of
// an input are the place of its level there. A float of 8 bits stands for an eighth of itself, rounded to a 256th.
//
// Blocks are [group][block][word of a block][panel of 2][16], with their own scales: see blocks.h. `units` are 1, or
// not finite.
//
// The results of a `partial` matrix are parts of sums over the ranks, each of which has some inputs. Its `adapters`, if
// there are such, count panels from that of the whole matrix whose number here is `first_panel`.
struct Matrix {
    const uint32_t* data;
    const uint32_t* scales;  // null except for levels
    const float* units;      // [outputs padded], null except for levels
    const float* bias;       // [outputs padded], or null
    const int8_t* table;     // [16], or null
    const struct Adapters* adapters;
    int32_t kind, outputs, inputs, words, scale_words, partial, first_panel, odd;
};

// One adapter of a matrix. `shrink` [parts * rank, inputs] has numbers of the type of the matrix's activations and as
// many words for an output, and `expand` [panel of 16 outputs][word][16] words of 32 bits, as a weight's. The rank is a
// multiple of the numbers in a word. Rank 0: it changes nothing. Those of the next one of equal matrices, as experts
// are, lie so many words behind these.
struct Adapter {
    Matrix shrink;
    const void* expand;
    int64_t shrink_apart, expand_apart;
    int32_t rank, unused;
};

// The adapters by their numbers of a matrix, or of equal ones, and the part of the shrunk numbers from which each panel
// expands.
struct Adapters {
    const Adapter* slots;
    const int32_t* parts;
    int32_t count, unused;
};

// Positions [start, start + count) of one sequence, in rows [row, row + count) of a tile; `blocks` is its block table.
// One thread stores a span: neighbours, which share words, are never in two spans of a tile. `state_blocks` is the
// table of the blocks that end with states, in a tile with such. Of a span that verifies guesses the states are read
// and not written: its rows are kept in those of the tile's `kept` from row `kept` on; -1: it verifies none.
struct Span {
    const int32_t* blocks;
    int32_t row, start, count, kept;
    const int32_t* state_blocks;
};

// Rows that go through the model together, and the KV pool [block][layer][plane][kv_head] that they read and write;
// kv_layout.h and scaled_keys.h describe a head's slots there. Two planes are keys and values; in one plane, the first
// numbers of a key are its value. `kind` is that of activations and weights. Angles [rows, dim / 2] stand for those of
// the rows' positions, in layers with keys and values; null: those do. `adapters` [rows] numbers the rows'
// adapters, less than 0 for a row without one; null: none has one. `states` are those of recurrent layers, behind
// blocks of `state_tokens` positions: `state_stride` numbers from one block's to the next one's. `kept`
// [row][layer][outputs of the product in] is of recurrent layers, `kept_stride` numbers from row to row.
struct Tile {
    void* pool;
    const Span* spans;
    int32_t span_count, rows, kind, layers, planes, kv_heads, block_size, head_dim, cells, unused;
    const float *cosines, *sines;
    const int32_t* adapters;
    float* states;
    int64_t state_stride;
    int32_t state_tokens, also_unused;
    float* kept;
    int64_t kept_stride;
};

// Angles of all positions [positions, dim / 2], by which the first `dim` numbers of a head turn: those of its halves
// together, or `interleaved` ones, which are in halves afterwards.
struct Rotation {
    const float *cosines, *sines;
    int32_t dim, interleaved;
};

// hidden += after(out(attention(heads(qkv(before(hidden)))))). Norm weights are float32; null where there is none.
// `window` 0: every position is seen. With `sinks` [heads] each head has a score more, of no key. Without heads, only
// keys and values are computed and stored, and hidden stays as it is. Of a worker of several ranks `heads`, and the
// outputs of both matrices, are this rank's; the inputs of `out` are all ranks' heads. A partial `out` has this rank's
// heads as inputs, and all outputs. With `gated` heads, qkv also has a gate for each number of the queries, behind the
// values: what is attended to is multiplied by their sigmoids.
struct AttentionHalf {
    Matrix qkv, out;
    const float *before, *after, *query_norm, *key_norm, *sinks;
    Rotation rotation;
    float epsilon, scale;
    int32_t hidden, heads, kv_heads, head_dim, layer, window, gated, unused;
};

// The same of latent attention (DeepSeek-AI, 2024). A position stores one vector: the normed latent of `rank` numbers,
// then the turned part of its keys, which `compress` makes. Queries are `query` of the normed `down`, or of the normed
// hidden state where that has no data. A head's query has `key_dim` numbers, which `absorb` [heads] brings to the
// latent's, then the turned ones; `expand` [heads] makes `value_dim` numbers of its weighted sum of latents.
struct LatentHalf {
    Matrix compress, down, query, out;
    const Matrix *absorb, *expand;
    const float *before, *after, *query_norm, *key_norm;
    Rotation rotation;
    float epsilon, latent_epsilon, scale;
    int32_t hidden, heads, rank, key_dim, value_dim, layer, window;
};

// hidden += after(out(gates(norm(delta rule(convolution(in(before(hidden)))))))): recurrent.h. `in` makes the queries
// and keys of the `key_heads`, the values of the `value_heads`, then the gates, strengths and times of these.
// `channels` [width][channels] convolves the first three, `rate` and `bias` [value_heads] make decays of times, and
// `norm` [value_dim] is that of each head, with `own_epsilon`. `layer` is the number among the recurrent ones. Ranks
// divide the heads. With `direct` [value_heads], by which values reach the results beside the matrix, it is the state
// space of Mamba 2: no strengths are made, gates come before the norm [value_heads][value_dim], and the convolution
// adds `channel_bias`.
struct RecurrentHalf {
    Matrix in, out;
    const float *before, *after, *norm, *channels, *channel_bias, *bias, *rate, *direct;
    float epsilon, own_epsilon;
    int32_t hidden, key_heads, value_heads, key_dim, value_dim, width, layer, unused;
};

// result += after(down(activation(gate) * up)) of before(x). Gates and ups alternate by panels of 16. `inner` is the
// number of gates; where the inputs of `down` are more, this rank has a part of the outputs of both matrices. A
// partial `down` has as inputs the outputs of the first that are this rank's.
struct MlpHalf {
    Matrix gate_up, down;
    const float *before, *after;
    float epsilon, alpha, limit;
    int32_t hidden, inner, activation;
};

// result += after(sum of rating * expert of each row's `per_token` experts, + shared expert) of before(x). `router` and
// the `shared_gate` of one output are float32, and take x rounded as the experts do. `bias` [count], or null, counts
// for the choice only. With several groups of neighbours, experts are those of the `kept_groups` whose `group_best`
// experts have the highest sum. `experts` are the `own` ones of this rank, from number `first` on, without norms. The
// shared expert has no data if there is none, nor has its gate; where it has one, that is by which it is multiplied.
// Ranks exchange what their experts make; if it is `partial`, each adds up its own, and they add these sums; if rows
// are `dispatched`, each rank has an equal share of them, or a tile of its own (of no rows, if it has none), and sends
// them to the ranks that hold their experts.
struct ExpertHalf {
    Matrix router, shared_gate;
    MlpHalf shared;
    const MlpHalf* experts;
    const float *before, *after, *bias;
    float epsilon, factor;
    int32_t hidden, count, first, own, per_token, scores, normalize, groups, kept_groups, group_best;
    int32_t partial, dispatched;
};

// One half of each kind; the others are null.
struct Layer {
    const AttentionHalf* attention;
    const LatentHalf* latent;
    const RecurrentHalf* recurrent;
    const MlpHalf* mlp;
    const ExpertHalf* experts;
};

// Numbers in [0, 1) for which ids are drawn, those of row i in [ends[i - 1], ends[i]). Logits [rows] have no NaN and a
// finite highest number in each row; masses [rows, vocabulary] are their probabilities. `floors` are the lowest logits
// that min_p keeps. Rows that are not to be drawn from, and afterwards those where rounding might matter, have
// `certain` 0, and no ids. Masses may be wrong by the share `doubt` of their sum.
struct Draws {
    const float *logits, *masses, *floors;
    const double *top_p, *numbers;
    const int64_t* ends;
    int64_t* ids;
    uint8_t* certain;
    double doubt;
    int64_t stride;  // from one row of logits to the next
    int32_t rows, vocabulary;
};

struct Context;    // threads and scratch memory; one call at a time
class RankGroup;   // rank_group.h; one call at a time, those of a context that has joined it included
int32_t pontil_abi();
// Null when the system does not let this process use these instructions.
Context* pontil_open(int32_t threads);
void pontil_close(Context*);
// Lets the context also compute on cores that other workers lend. `cells` are those of csrc/lent_cores.h, 16 for each
// core; `mark` is above 1, and unique to this worker. Results stay the same. The context keeps the cells.
void pontil_borrow(Context*, uint32_t* cells, int32_t cores, uint32_t mark);
// Enters a group of ranks by shared memory of `size` bytes. Null if another process has this rank.
RankGroup* pontil_group_open(void* memory, int64_t size, int32_t rank, int32_t ranks, double deadline);
void pontil_group_close(RankGroup*);
// Layers that are divided exchange their parts in this group, or in none if it is null.
void pontil_join(Context*, RankGroup*);
// The following return a Status. After FAULTY, every later call returns it at once.
// Returns once all ranks have called it.
int32_t pontil_group_meet(RankGroup*);
// Parts [rows][bytes] of all ranks side by side: result [rows][ranks * bytes].
int32_t pontil_group_gather(RankGroup*, const void* part, int64_t rows, int64_t bytes, void* result);
// Row r of result [rows][bytes] becomes x's of rank owners[r].
int32_t pontil_group_choose(RankGroup*, const void* x, int64_t rows, int64_t bytes, const int64_t* owners,
                            void* result);
// counts[from * ranks + to] rows go from one rank to another: x [rows][bytes] are this rank's in the order of the ranks
// that they go to, and result gets those for it in the order of the ranks that they come from.
int32_t pontil_group_all_to_all(RankGroup*, const void* x, const int64_t* counts, int64_t bytes, void* result);
// The fault that was noticed first, in the upper 32 bits, and its rank; 0 if there is none. Not a Status.
uint64_t pontil_group_fault(const RankGroup*);
// hidden float32 [rows, hidden], changed in place.
int32_t pontil_attention_half(Context*, const AttentionHalf*, const Tile*, float* hidden);
int32_t pontil_latent_half(Context*, const LatentHalf*, const Tile*, float* hidden);
int32_t pontil_recurrent_half(Context*, const RecurrentHalf*, const Tile*, float* hidden);
// Takes kept rows into the states of the layers that have such: each span's are those from its row on.
void pontil_take_kept(Context*, const Layer*, int32_t count, const Tile*);
// Adds the MLP, or the experts, of x float32 [rows, hidden] to result, which may be x.
int32_t pontil_mlp_half(Context*, const MlpHalf*, int32_t rows, const float* x, float* result);
int32_t pontil_expert_half(Context*, const ExpertHalf*, int32_t rows, const float* x, float* result);
// Runs both halves of one layer after the other.
int32_t pontil_layers(Context*, const Layer*, int32_t count, const Tile*, float* hidden);
// x float32 [rows, inputs], normed first if `norm` is not null; result float32 [rows, outputs padded]. If `highest`
// [rows] is not null, it gets the number of each row's highest output, of equal ones the first, and `tops`
// [rows][groups] the highest output of each GROUP of them, NaN taken for minus infinity.
void pontil_linear(Context*, const Matrix*, int32_t rows, const float* x, const float* norm, float epsilon,
                   float* result, int64_t* highest, float* tops);
// Draws with the calling thread alone; the ids are the same for all kernels.
void pontil_draw(const Draws*);
// Finds the `count` highest of the `wanted` rows of logits, which lie `stride` apart, with the calling thread alone:
// pairs [wanted][count][2] get the id and the bits of the logit, the highest first, of equal ones the lowest id. NaN is
// taken for minus infinity and -0.0 for 0.0; what a small vocabulary lacks is -1. With `tops`, those of the groups as
// pontil_linear makes them, few of the logits are read.
void pontil_top_logits(const float* logits, int64_t stride, const float* tops, const int32_t* rows, int32_t wanted,
                       int32_t vocabulary, int32_t count, int32_t* pairs);
// Has each thread do independent multiply-adds of that kind, `rounds` times some, as fast as the processor can; returns
// how many all threads did.
int64_t pontil_multiply_adds(Context*, int32_t kind, int64_t rounds);
// Reads `count` words with all threads.
void pontil_read(Context*, const uint32_t* words, int64_t count);
}
