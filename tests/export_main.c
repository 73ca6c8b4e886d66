/* Calls an exported kernel on what stdin holds and writes what it gives to stdout: plain C99.
 *
 * -DNAME=..., -DHEADER="...", -DHEAD_DIM=..., -DELEMENT=(bytes of q) and -DREAL=(type of lse); with
 * ON_GPU all memory is the device's, with DOCUMENTS the program has doc, slope and cap. */
#include HEADER

#include <stdio.h>
#include <stdlib.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define MEMBER(suffix) JOIN(NAME, suffix)

enum { B = 2, SQ = 65, SK = 70, H = 4, HKV = 2, D = HEAD_DIM };

#ifdef ON_GPU
#include <cuda_runtime_api.h>
#define STREAM , stream
static cudaStream_t stream;

static void must(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
        exit(3);
    }
}
static void* allocate(size_t bytes) {
    void* data = NULL;
    must(cudaMalloc(&data, bytes));
    must(cudaMemset(data, 0xff, bytes)); /* NaN: what isn't written is seen */
    must(cudaDeviceSynchronize());       /* stream doesn't wait for the default one */
    return data;
}
static void to_call(void* data, const void* host, size_t bytes) {
    must(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice));
}
static void from_call(void* host, const void* data, size_t bytes) {
    must(cudaStreamSynchronize(stream));
    must(cudaMemcpy(host, data, bytes, cudaMemcpyDeviceToHost));
}
#else
#include <string.h>
#define STREAM
static void* allocate(size_t bytes) {
    void* data = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    memset(data, 0xff, bytes);
    return data;
}
static void to_call(void* data, const void* host, size_t bytes) { memcpy(data, host, bytes); }
static void from_call(void* host, const void* data, size_t bytes) { memcpy(host, data, bytes); }
#endif

/* The next `bytes` of stdin, in memory of the call. */
static void* input(size_t bytes) {
    void *host = malloc(bytes), *data = allocate(bytes);
    if (fread(host, 1, bytes, stdin) != bytes) exit(2);
    to_call(data, host, bytes);
    free(host);
    return data;
}

static void output(const void* data, size_t bytes) {
    void* host = malloc(bytes);
    from_call(host, data, bytes);
    fwrite(host, 1, bytes, stdout);
    free(host);
}

static void check(flashgen_status status) {
    if (status == FLASHGEN_OK) return;
    fprintf(stderr, "status %d: %s\n", (int)status, MEMBER(_message)());
    exit(1);
}

static flashgen_input in_rows(const void* data, int64_t rows, int64_t heads) {
    flashgen_input t = {data, rows * heads * D, heads * D, D};
    return t;
}

static flashgen_output out_rows(void* data, int64_t rows, int64_t heads) {
    flashgen_output t = {data, rows * heads * D, heads * D, D};
    return t;
}

int main(void) {
    const size_t q_bytes = (size_t)B * SQ * H * D * ELEMENT,
                 k_bytes = (size_t)B * SK * HKV * D * ELEMENT;
    const size_t row_bytes = (size_t)B * H * SQ * sizeof(REAL);
    const void *q = input(q_bytes), *k = input(k_bytes), *v = input(k_bytes),
               *dout = input(q_bytes);
    const REAL* dlse = input(row_bytes);
    void *out = allocate(q_bytes), *dq = allocate(q_bytes), *dk = allocate(k_bytes),
         *dv = allocate(k_bytes);
    REAL* lse = allocate(row_bytes);
#ifdef ON_GPU
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
#endif

    MEMBER(_forward_args) f = {0};
    f.batch = B, f.seqlen_q = SQ, f.seqlen_k = SK, f.num_heads = H, f.num_heads_kv = HKV;
    f.q = in_rows(q, SQ, H), f.k = in_rows(k, SK, HKV), f.v = in_rows(v, SK, HKV);
    f.k.row_stride = D,
    f.k.head_stride = SK * D; /* stdin has k as [batch, heads, seqlen, head_dim] */
    f.out = out_rows(out, SQ, H);
    f.lse = lse;
    f.softmax_scale = 0.125;
    f.workspace_bytes = MEMBER(_forward_workspace)(B, H, HKV, SQ, SK);
    f.workspace = allocate(f.workspace_bytes + 16);

    MEMBER(_backward_args) g = {0};
    g.batch = B, g.seqlen_q = SQ, g.seqlen_k = SK, g.num_heads = H, g.num_heads_kv = HKV;
    g.q = f.q, g.k = f.k, g.v = f.v, g.out = in_rows(out, SQ, H), g.dout = in_rows(dout, SQ, H);
    g.dq = out_rows(dq, SQ, H), g.dk = out_rows(dk, SK, HKV), g.dv = out_rows(dv, SK, HKV);
    g.lse = lse, g.dlse = dlse;
    g.softmax_scale = f.softmax_scale;
    g.workspace_bytes = MEMBER(_backward_workspace)(B, H, HKV, SQ, SK);
    g.workspace = allocate(g.workspace_bytes + 16);

#ifdef DOCUMENTS
    f.captures.doc.data = input(sizeof(int32_t) * B * SK);
    f.captures.doc.shape[0] = B, f.captures.doc.shape[1] = SK;
    f.captures.doc.strides[0] = SK, f.captures.doc.strides[1] = 1;
    f.captures.slope.data = input(sizeof(float) * H);
    f.captures.slope.shape[0] = H, f.captures.slope.strides[0] = 1;
    f.params.cap = 5.0;
    g.captures = f.captures, g.params = f.params;
    g.gradients.slope = allocate(sizeof(REAL) * H);
#endif

    check(MEMBER(_forward)(&f STREAM));
    check(MEMBER(_backward)(&g STREAM));
    output(out, q_bytes), output(lse, row_bytes);
    output(dq, q_bytes), output(dk, k_bytes), output(dv, k_bytes);
#ifdef DOCUMENTS
    output(g.gradients.slope, sizeof(REAL) * H);
#endif

    /* Wrong calls say so, each on a line of stderr, and leave the process as it was. */
    f.num_heads_kv = 3;
    fprintf(stderr, "%d %s\n", MEMBER(_forward)(&f STREAM), MEMBER(_message)());
    f.num_heads_kv = HKV, f.q.data = NULL;
    fprintf(stderr, "%d %s\n", MEMBER(_forward)(&f STREAM), MEMBER(_message)());
    f.q.data = q, f.softmax_scale = 0;
    fprintf(stderr, "%d %s\n", MEMBER(_forward)(&f STREAM), MEMBER(_message)());
    g.workspace_bytes = 15;
    fprintf(stderr, "%d %s\n", MEMBER(_backward)(&g STREAM), MEMBER(_message)());
    f.softmax_scale = 1, f.seqlen_k = 0;
    fprintf(stderr, "%d %s\n", MEMBER(_forward)(&f STREAM), MEMBER(_message)());
    f.seqlen_k = SK;
#ifdef DOCUMENTS
    f.captures.doc.shape[1] = SQ;
    fprintf(stderr, "%d %s\n", MEMBER(_forward)(&f STREAM), MEMBER(_message)());
#endif
    return 0;
}
