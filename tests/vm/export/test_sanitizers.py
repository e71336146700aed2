"""What a library is made of, compiled with sanitizers: no bad access, no race, no leak."""

import subprocess
from pathlib import Path

import pytest

import meta
from tests.vm.export.networks import CASES

CALLER = """
#include "model.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *call(void *argument) {
    meta_model *model;
    if (meta_model_create(*(int *)argument, &model) != META_MODEL_OK) exit(1);
    for (int64_t n = 1; n < 40; n++) {
        int64_t size = meta_model_output_bytes(0, &n);
        void *words = calloc(1, (size_t)meta_model_input_bytes(0, &n));
        void *result = malloc((size_t)size);
        const void *inputs[] = {words};
        void *outputs[] = {result};
        if (meta_model_run(model, inputs, outputs, &n) != META_MODEL_OK) {
            puts(meta_model_error(model));
            exit(1);
        }
        free(words);
        free(result);
    }
    meta_model_destroy(model);
    return NULL;
}

int main(void) {
    int threads[] = {1, 2};
    pthread_t others[2];
    for (int i = 0; i < 2; i++) pthread_create(&others[i], NULL, call, &threads[i]);
    for (int i = 0; i < 2; i++) pthread_join(others[i], NULL);
    puts("done");
}
"""


@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, kind: str) -> None:
    """Calls of two threads, by C that is compiled with what the library is made of."""
    case = CASES["texts"]
    run = meta.vm.compile(case.network(), meta.ir.parse_type("int64[n, 5]"))
    run.export(tmp_path / "model.so", sources=tmp_path)
    (tmp_path / "main.c").write_text(CALLER)
    flags = f"-g -std=gnu11 -Wall -Wextra -Wno-unused-function -fsanitize={kind} -pthread"
    command = f"cc {flags} main.c runtime.c kernels*.o -lm -o main"
    made = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if "cannot find" in made.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert (made.returncode, made.stderr) == (0, "")
    ran = subprocess.run("./main", cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
