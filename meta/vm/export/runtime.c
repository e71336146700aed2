/* What a compiled model needs in a process without Python: its interface, memory, and threads.
 * The program itself, program.inc, is included below. */

#include "@HEADER@"

#include <cpuid.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The constants of the program: mapped from the file, shared by all who have it. */
__asm__(".pushsection .rodata\n.balign 64\n.hidden weights\n.globl weights\nweights:\n"
        ".incbin \"weights.bin\"\n.quad 0\n.popsection");

#define API __attribute__((visibility("default")))
#define ALIGNMENT 64

enum { RANK = @RANK@ };

/* How kernels are called: DLPack's tensors, and the calling convention of tvm_ffi. */

typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;

typedef struct {
    int32_t kind;
    uint32_t zero;
    union {
        int64_t integer;
        double number;
        void *pointer;
    } as;
} value;

typedef int kernel(void *, const value *, int32_t, value *);

/* The program's tensors, numbers that its kernels are given, and the memory of a model. */

typedef struct {
    tensor dl;
    int64_t shape[RANK], strides[RANK];
    meta_model_dtype dtype;
} array;

typedef meta_model model;
typedef meta_model_tensor tensor_info;
typedef meta_model_dim dim_info;
#define STATUS(name) META_MODEL_##name
#define DTYPE(name) META_MODEL_##name

typedef struct {
    const char *name;
    unsigned leaf, subleaf, word, bit;
} feature;

typedef struct {
    void *sync;
    int32_t tasks;
} group;

typedef int task_body(int32_t task, group *, void *);

typedef struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t begin, end;
    int threads, running, failed, closed, inside;
    unsigned round;
    task_body *body;
    void *data;
    struct worker {
        struct pool *pool;
        pthread_t thread;
        int task;
    } *workers;
} pool;

struct meta_model {
    char error[512];
    int busy;
    unsigned char *memory;
    int64_t size;
    int64_t *sizes, *places;
    array *arrays;
    pool pool;
};

static __thread meta_model *current;
static __thread char last_error[512];

static const struct {
    uint8_t code, bits;
} kinds[] = {{6, 8},  {1, 8},  {0, 8},  {1, 16}, {0, 16}, {1, 32}, {0, 32},
             {1, 64}, {0, 64}, {2, 16}, {4, 16}, {2, 32}, {2, 64}};

static int failed(meta_model *model, int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(model ? model->error : last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

/* Arithmetic of extents: what is too large stays the largest number. */

static inline int64_t add(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static inline int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static inline int64_t quotient(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

static int64_t elements(int rank, const int64_t *shape) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++) {
        if (shape[i] == 0) return 0;
        count = shape[i] < 0 ? INT64_MAX : times(count, shape[i]);
    }
    return count;
}

static int64_t bytes(meta_model_dtype dtype, int rank, const int64_t *shape) {
    return times(elements(rank, shape), kinds[dtype].bits / 8);
}

/* What the program is made of. */

static inline void define(array *a, const void *data, meta_model_dtype dtype, int rank,
                          const int64_t *shape) {
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        a->shape[i] = shape[i];
        a->strides[i] = stride;
        stride *= shape[i] > 1 ? shape[i] : 1;
    }
    a->dtype = dtype;
    a->dl = (tensor){(void *)data, 1, 0, rank, kinds[dtype].code, kinds[dtype].bits, 1,
                     a->shape, a->strides, 0};
}

static inline value of(array *a) { return (value){7, 0, {.pointer = &a->dl}}; }
static inline value integer(int64_t number) { return (value){1, 0, {.integer = number}}; }
static inline value boolean(int truth) { return (value){2, 0, {.integer = truth}}; }
static inline value number(double number) { return (value){3, 0, {.number = number}}; }

static inline int is_empty(const array *a) { return elements(a->dl.rank, a->shape) == 0; }

static inline void grow(int64_t *size, int64_t wanted) {
    if (*size < wanted) *size = wanted;
}

static inline void copy(void *to, const array *from) {
    int64_t size = bytes(from->dtype, from->dl.rank, from->shape);
    if (size) memcpy(to, from->dl.data, (size_t)size);
}

static int launch(meta_model *model, kernel *run, const char *what, int count,
                  const value *values) {
    value nothing = {0, 0, {0}};
    model->error[0] = 0;
    if (run(NULL, values, count, &nothing) == 0) return 0;
    char why[256];
    memcpy(why, model->error, sizeof why - 1);
    why[sizeof why - 1] = 0;
    failed(model, 0, "%s: the kernel fails: %s", what, why);
    return 1;
}

static inline double element(const array *a, int64_t i) {
    switch (a->dtype) {
    case META_MODEL_BOOL:
    case META_MODEL_UINT8: return ((const uint8_t *)a->dl.data)[i];
    case META_MODEL_INT8: return ((const int8_t *)a->dl.data)[i];
    case META_MODEL_UINT16: return ((const uint16_t *)a->dl.data)[i];
    case META_MODEL_INT16: return ((const int16_t *)a->dl.data)[i];
    case META_MODEL_UINT32: return ((const uint32_t *)a->dl.data)[i];
    case META_MODEL_INT32: return ((const int32_t *)a->dl.data)[i];
    case META_MODEL_UINT64: return (double)((const uint64_t *)a->dl.data)[i];
    case META_MODEL_FLOAT32: return ((const float *)a->dl.data)[i];
    case META_MODEL_FLOAT64: return ((const double *)a->dl.data)[i];
    default: return (double)((const int64_t *)a->dl.data)[i];
    }
}

static int wrong_index(meta_model *model, const char *what, double index, int64_t i,
                       const char *why) {
    failed(model, 0, "%s: %.17g at element %lld%s", what, index, (long long)i, why);
    return 1;
}

/* Whether the elements, those at one position of an axis where that is not -1, are at least low and
 * less than high, or one other number; ordered: and none less than the one before. */
static int check_indices(meta_model *model, const array *a, double low, double high, double also,
                         int axis, int64_t position, int ordered, const char *what) {
    int64_t inner = 1, count = elements(a->dl.rank, a->shape);
    for (int i = axis + 1; axis >= 0 && i < a->dl.rank; i++) inner *= a->shape[i];
    for (int64_t i = 0; i < count; i++) {
        if (axis >= 0 && i / inner % a->shape[axis] != position) continue;
        double index = element(a, i);
        if (!(index >= low && index < high) && index != also)
            return wrong_index(model, what, index, i, "");
        if (ordered && i && index < element(a, i - 1))
            return wrong_index(model, what, index, i, ", less than the one before");
    }
    return 0;
}

static int check_divisors(meta_model *model, const array *a, const char *what) {
    for (int64_t i = 0, count = elements(a->dl.rank, a->shape); i < count; i++)
        if (element(a, i) == 0) return wrong_index(model, what, 0, i, "");
    return 0;
}

typedef struct {
    int64_t rows;
    int (*run)(model *, const void *const *, void *const *, const int64_t *);
} block;

extern const unsigned char weights[];

#include "program.inc"

/* Threads: those of a model sleep while it computes on one, and between calls. */

static void *work(void *argument) {
    struct worker *self = argument;
    pool *pool = self->pool;
    unsigned round = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->round == round && !pool->closed) pthread_cond_wait(&pool->begin, &pool->mutex);
        if (pool->closed) break;
        round = pool->round;
        pthread_mutex_unlock(&pool->mutex);
        group group = {NULL, pool->threads};
        int status = pool->body(self->task, &group, pool->data);
        pthread_mutex_lock(&pool->mutex);
        pool->failed |= status;
        if (--pool->running == 0) pthread_cond_signal(&pool->end);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static int parallel(task_body *body, void *data, int32_t tasks) {
    pool *pool = current ? &current->pool : NULL;
    (void)tasks; /* as many as there are threads */
    group group = {NULL, pool && !pool->inside ? pool->threads : 1};
    if (group.tasks == 1) return body(0, &group, data);
    pthread_mutex_lock(&pool->mutex);
    pool->body = body, pool->data = data, pool->failed = 0, pool->inside = 1;
    pool->running = pool->threads - 1, pool->round++;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->mutex);
    int status = body(0, &group, data);
    pthread_mutex_lock(&pool->mutex);
    while (pool->running) pthread_cond_wait(&pool->end, &pool->mutex);
    status |= pool->failed;
    pool->inside = 0;
    pthread_mutex_unlock(&pool->mutex);
    return status;
}

static void close_pool(pool *pool, int started) {
    pthread_mutex_lock(&pool->mutex);
    pool->closed = 1;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->begin);
    pthread_cond_destroy(&pool->end);
    free(pool->workers);
}

static int open_pool(pool *pool, int threads) {
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->begin, NULL);
    pthread_cond_init(&pool->end, NULL);
    pool->threads = threads;
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    for (int i = 0; i < threads - 1; i++) {
        struct worker *worker = pool->workers ? &pool->workers[i] : NULL;
        if (worker) *worker = (struct worker){pool, 0, i + 1};
        if (!worker || pthread_create(&worker->thread, NULL, work, worker) != 0) {
            close_pool(pool, i);
            return 0;
        }
    }
    return 1;
}

/* What kernels call: by pointers that they share, and by name. */

static void *workspace(int type, int id, uint64_t size, int code, int bits) {
    (void)type, (void)id, (void)code, (void)bits;
    size_t whole = (size_t)(size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, whole);
    if (!memory && current) failed(current, 0, "no memory for %zu bytes", whole);
    return memory;
}

static int free_workspace(int type, int id, void *memory) {
    (void)type, (void)id;
    free(memory);
    return 0;
}

int (*__TVMBackendParallelLaunch)(task_body *, void *, int32_t) = parallel;
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = free_workspace;

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
    if (!current) return;
    snprintf(current->error, sizeof current->error, "%s: ", kind);
    for (int32_t i = 0; i < count; i++)
        if (parts[i])
            strncat(current->error, parts[i], sizeof current->error - strlen(current->error) - 1);
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
    TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

/* The interface. */

static int bad_dims(meta_model *model, const int64_t *dims) {
    if (DIMS && !dims) return failed(model, META_MODEL_ARGUMENT, "dims is NULL");
    for (int i = 0; i < DIMS; i++)
        if (dims[i] < dimensions[i].least || dims[i] > dimensions[i].largest)
            return failed(model, META_MODEL_DIMENSION,
                          "dimension %s is out of range: %lld is not in %lld to %lld",
                          dimensions[i].name, (long long)dims[i], (long long)dimensions[i].least,
                          (long long)dimensions[i].largest);
    return META_MODEL_OK;
}

API int meta_model_abi(void) { return META_MODEL_ABI; }
API const char *meta_model_name(void) { return model_name; }
API int meta_model_input_count(void) { return INPUTS; }
API int meta_model_output_count(void) { return OUTPUTS; }
API int meta_model_dim_count(void) { return DIMS; }

API const meta_model_tensor *meta_model_input(int i) {
    return i < 0 || i >= INPUTS ? NULL : &tensors[i];
}

API const meta_model_tensor *meta_model_output(int i) {
    return i < 0 || i >= OUTPUTS ? NULL : &tensors[INPUTS + i];
}

API const meta_model_dim *meta_model_dimension(int i) {
    return i < 0 || i >= DIMS ? NULL : &dimensions[i];
}

static int64_t tensor_bytes(int i, const int64_t *dims) {
    int64_t shape[RANK];
    shape_of(i, dims, shape);
    return bytes(tensors[i].dtype, tensors[i].rank, shape);
}

static int64_t known_bytes(int i, const int64_t *dims) {
    int64_t size = i < 0 || bad_dims(NULL, dims) ? -1 : tensor_bytes(i, dims);
    return size == INT64_MAX ? -1 : size;
}

/* Where an input or output begins from a row on; the same one where it has no rows. */
static uintptr_t from_row(int i, const void *begin, int64_t row) {
    int64_t one[DIMS + 1] = {1};
    int has_rows = tensors[i].rank && tensors[i].shape[0] < 0;
    return (uintptr_t)begin + (has_rows ? (uintptr_t)(row * tensor_bytes(i, one)) : 0);
}

static int run(model *m, const void *const *in, void *const *out, const int64_t *dims) {
    if (!blocks[0].rows) return blocks[0].run(m, in, out, dims);
    const void *inputs[INPUTS + 1];
    void *outputs[OUTPUTS + 1];
    for (int64_t row = 0, next; row < dims[0]; row = next) {
        const block *block = blocks;
        while (block->rows > dims[0] - row) block++;
        next = row + block->rows;
        for (int i = 0; i < INPUTS; i++) inputs[i] = (const void *)from_row(i, in[i], row);
        for (int i = 0; i < OUTPUTS; i++) outputs[i] = (void *)from_row(INPUTS + i, out[i], row);
        int status = block->run(m, inputs, outputs, dims);
        if (status == META_MODEL_OK) continue;
        size_t end = strlen(m->error);
        snprintf(m->error + end, sizeof m->error - end, " (counted from row %lld)", (long long)row);
        return status;
    }
    return META_MODEL_OK;
}

API int64_t meta_model_input_bytes(int i, const int64_t *dims) {
    return known_bytes(meta_model_input(i) ? i : -1, dims);
}

API int64_t meta_model_output_bytes(int i, const int64_t *dims) {
    return known_bytes(meta_model_output(i) ? INPUTS + i : -1, dims);
}

API int meta_model_output_shape(int i, const int64_t *dims, int64_t *shape) {
    if (!meta_model_output(i) || !shape) return META_MODEL_ARGUMENT;
    int status = bad_dims(NULL, dims);
    if (status == META_MODEL_OK) shape_of(INPUTS + i, dims, shape);
    return status;
}

static const char *missing_feature(void) {
    for (const feature *f = features; f->name; f++) {
        unsigned words[4] = {0}, low, high;
        if (!__get_cpuid_count(f->leaf, f->subleaf, &words[0], &words[1], &words[2], &words[3]) ||
            !(words[f->word] >> f->bit & 1))
            return f->name;
        if (strncmp(f->name, "avx", 3) != 0) continue;
        /* Registers that the operating system does not save are not there, either. */
        unsigned wanted = strncmp(f->name, "avx512", 6) == 0 ? 0xe6 : 0x6;
        __get_cpuid(1, &words[0], &words[1], &words[2], &words[3]);
        if (!(words[2] >> 27 & 1)) return f->name;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if ((low & wanted) != wanted) return f->name;
    }
    return NULL;
}

/* Have memory for a call, and places in it. */
static int reserve(meta_model *model, const int64_t *dims) {
    int64_t total = 0;
    memset(model->sizes, 0, sizeof *model->sizes * (PLACES + 1));
    lay_out(dims, model->sizes);
    for (int i = 0; i < PLACES; i++) {
        model->places[i] = total;
        total = add(total, add(model->sizes[i], ALIGNMENT - 1));
        if (total > INT64_MAX / 2) return 0;
        total -= total % ALIGNMENT;
    }
    if (total <= model->size) return 1;
    free(model->memory);
    model->memory = aligned_alloc(ALIGNMENT, (size_t)total);
    model->size = model->memory ? total : 0;
    return model->memory != NULL;
}

API void meta_model_destroy(meta_model *model) {
    if (!model) return;
    close_pool(&model->pool, model->pool.threads - 1);
    free(model->memory);
    free(model->sizes);
    free(model->places);
    free(model->arrays);
    free(model);
}

API int meta_model_create(int threads, meta_model **made) {
    if (!made) return failed(NULL, META_MODEL_ARGUMENT, "there is no place for the model: NULL");
    *made = NULL;
    if (threads < 1 || threads > 1024)
        return failed(NULL, META_MODEL_ARGUMENT, "%d threads are not 1 to 1024", threads);
    const char *missing = missing_feature();
    if (missing)
        return failed(NULL, META_MODEL_PROCESSOR,
                      "this processor has no %s, which the library was compiled for", missing);
    meta_model *model = calloc(1, sizeof *model);
    if (!model) return failed(NULL, META_MODEL_MEMORY, "no memory for a model");
    if (!open_pool(&model->pool, threads)) {
        free(model);
        return failed(NULL, META_MODEL_MEMORY, "%d threads cannot be made", threads);
    }
    model->sizes = calloc(PLACES + 1, sizeof *model->sizes);
    model->places = calloc(PLACES + 1, sizeof *model->places);
    model->arrays = calloc(REGISTERS + 1, sizeof *model->arrays);
    int ready = model->sizes && model->places && model->arrays;
    if (!ready || (!DIMS && !reserve(model, NULL))) {
        meta_model_destroy(model);
        return failed(NULL, META_MODEL_MEMORY, "no memory for a model");
    }
    *made = model;
    return META_MODEL_OK;
}

/* Look at the pointers; the bytes of each go to `sizes`. */
static int bad_pointers(meta_model *model, const void *const *pointers, const int64_t *dims,
                        int64_t *sizes) {
    for (int i = 0; i < INPUTS + OUTPUTS; i++) {
        const char *what = i < INPUTS ? "input" : "output", *name = tensors[i].name;
        uintptr_t begin = (uintptr_t)pointers[i];
        sizes[i] = tensor_bytes(i, dims);
        if (sizes[i] == INT64_MAX)
            return failed(model, META_MODEL_DIMENSION, "%s %s is too large", what, name);
        if (sizes[i] && !begin)
            return failed(model, META_MODEL_ARGUMENT, "%s %s is NULL", what, name);
        if (sizes[i] && begin % (kinds[tensors[i].dtype].bits / 8u))
            return failed(model, META_MODEL_ARGUMENT, "%s %s is not aligned to its elements", what,
                          name);
        for (int k = 0; sizes[i] && k < i; k++) {
            uintptr_t other = (uintptr_t)pointers[k];
            if ((i >= INPUTS || tensors[i].written || tensors[k].written) &&
                begin < other + (uintptr_t)sizes[k] && other < begin + (uintptr_t)sizes[i])
                return failed(model, META_MODEL_ARGUMENT, "%s %s overlaps %s %s", what, name,
                              k < INPUTS ? "input" : "output", tensors[k].name);
        }
    }
    return META_MODEL_OK;
}

static int checked_run(meta_model *model, const void *const *inputs, void *const *outputs,
                       const int64_t *dims) {
    const void *pointers[INPUTS + OUTPUTS + 1];
    int64_t sizes[INPUTS + OUTPUTS + 1];
    if ((INPUTS && !inputs) || (OUTPUTS && !outputs))
        return failed(model, META_MODEL_ARGUMENT, "%s is NULL", inputs ? "outputs" : "inputs");
    for (int i = 0; i < INPUTS; i++) pointers[i] = inputs[i];
    for (int i = 0; i < OUTPUTS; i++) pointers[INPUTS + i] = outputs[i];
    int status = bad_dims(model, dims);
    if (status == META_MODEL_OK) status = bad_pointers(model, pointers, dims, sizes);
    if (status != META_MODEL_OK) return status;
    if (!reserve(model, dims))
        return failed(model, META_MODEL_MEMORY, "no memory for intermediate results");
    return run(model, inputs, outputs, dims);
}

API int meta_model_run(meta_model *model, const void *const *inputs, void *const *outputs,
                       const int64_t *dims) {
    if (!model) return META_MODEL_ARGUMENT;
    if (__atomic_exchange_n(&model->busy, 1, __ATOMIC_ACQUIRE)) return META_MODEL_BUSY;
    meta_model *outer = current;
    current = model;
    model->error[0] = 0;
    int status = checked_run(model, inputs, outputs, dims);
    current = outer;
    __atomic_store_n(&model->busy, 0, __ATOMIC_RELEASE);
    return status;
}

API const char *meta_model_error(const meta_model *model) {
    return model ? model->error : last_error;
}
