/* Every family against transformers in float64: logits, loss, every gradient, five AdamW steps (tests/golden). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/golden.h"

static void on(const char *name, bool ref)
{
    golden g;
    golden_open(&g, golden_path(name), golden_path(name), &(golden_options){.training = true, .clip = 1.0, .ref = ref});
    golden_check_logits(&g);
    golden_check_gradients(&g);
    if (golden_has(&g, "train_losses")) golden_check_steps(&g);
    golden_close(&g);
}

static void on_cpu(void **state)
{
    on(*state, false);
}

static void on_ref(void **state)
{
    on(*state, true);
}

int main(void)
{
    return golden_each_model("models on the CPU", on_cpu) + golden_each_model("models on ref", on_ref);
}
