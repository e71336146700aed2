/* A compiled model as a C library, written by meta.
 *
 *   meta_model *model;
 *   if (meta_model_create(1, &model) != META_MODEL_OK) { puts(meta_model_error(NULL)); return 1; }
 *   if (meta_model_run(model, inputs, outputs, dims) != META_MODEL_OK) puts(meta_model_error(model));
 *   meta_model_destroy(model);
 *
 * Tensors are compact, in row-major order, in memory of the caller. Models of a process share their
 * weights, and processes, too; each has its own memory for what is between inputs and outputs. One
 * model runs one call at a time; several models run at the same time on several threads.
 *
 * Every function that returns an int returns a meta_model_status, if nothing else is said.
 *
@SIGNATURE@
 */
#ifndef META_MODEL_H
#define META_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The number of this interface; what is compiled with one runs with libraries of the same. */
#define META_MODEL_ABI 1

typedef enum {
    META_MODEL_OK = 0,
    META_MODEL_ARGUMENT = 1,  /* a null or misaligned pointer, tensors that overlap */
    META_MODEL_DIMENSION = 2, /* a dimension out of range */
    META_MODEL_INDEX = 3,     /* an element of an input that indexes nothing, or divides by zero */
    META_MODEL_MEMORY = 4,    /* no memory, or no threads */
    META_MODEL_PROCESSOR = 5, /* this processor lacks instructions that the kernels need */
    META_MODEL_KERNEL = 6,    /* a kernel that fails: a fault of the library */
    META_MODEL_BUSY = 7       /* another thread runs this model now; its text is that one's */
} meta_model_status;

typedef enum {
    META_MODEL_BOOL, META_MODEL_UINT8, META_MODEL_INT8, META_MODEL_UINT16, META_MODEL_INT16,
    META_MODEL_UINT32, META_MODEL_INT32, META_MODEL_UINT64, META_MODEL_INT64, META_MODEL_FLOAT16,
    META_MODEL_BFLOAT16, META_MODEL_FLOAT32, META_MODEL_FLOAT64
} meta_model_dtype;

/* An input or output. Of an axis whose extent is the caller's to say, shape has -1; the text in
 * extents says what it is, in terms of the dimensions: "n", "2*n + 1", and of others "64". */
typedef struct {
    const char *name;
    meta_model_dtype dtype;
    int rank;
    const int64_t *shape;
    const char *const *extents;
    int written; /* whether a run writes to this input, whose memory is not const then */
} meta_model_tensor;

/* A dimension that the caller says: at least `least`, at most `largest`, both included. */
typedef struct {
    const char *name;
    int64_t least;
    int64_t largest;
} meta_model_dim;

typedef struct meta_model meta_model;

/* What the library is: META_MODEL_ABI as it was when it was written, and the model's name. */
int meta_model_abi(void);
const char *meta_model_name(void);

/* How many there are, and each by its number; NULL for a number that there is not. */
int meta_model_input_count(void);
int meta_model_output_count(void);
int meta_model_dim_count(void);
const meta_model_tensor *meta_model_input(int index);
const meta_model_tensor *meta_model_output(int index);
const meta_model_dim *meta_model_dimension(int index);

/* The bytes of an input or output, given the dimensions in their order (NULL if there are none);
 * -1 for a number that there is not, and for dimensions that are out of range. */
int64_t meta_model_input_bytes(int index, const int64_t *dims);
int64_t meta_model_output_bytes(int index, const int64_t *dims);

/* Write the extents of an output to `shape`. */
int meta_model_output_shape(int index, const int64_t *dims, int64_t *shape);

/* Make a model that computes on so many threads, the caller's among them: 1 makes none. */
int meta_model_create(int threads, meta_model **model);
void meta_model_destroy(meta_model *model);

/* Run: inputs and outputs are arrays of pointers, in their order. A tensor without elements may be
 * NULL. What is written overlaps no other tensor. After an error, outputs may hold anything;
 * the model may be used again. */
int meta_model_run(meta_model *model, const void *const *inputs, void *const *outputs,
                   const int64_t *dims);

/* What was wrong with the last call that failed; of NULL, with the last meta_model_create of this
 * thread. The text is the model's, and is there until its next call. */
const char *meta_model_error(const meta_model *model);

#ifdef __cplusplus
}
#endif
#endif
