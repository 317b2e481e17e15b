#include "model/init.h"

#include "base/random.h"

#include <math.h>

/* Two independent normal numbers from two words (Box and Muller, "A note on the generation of
 * random normal deviates", 1958). */
static void normal_pair(uint32_t a, uint32_t b, double out[2])
{
    static const double two_pi = 6.283185307179586476925;
    double radius = sqrt(-2.0 * log(((double)a + 0.5) * 0x1p-32)); /* never log(0) */
    double angle = two_pi * ((double)b * 0x1p-32);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

static void normal_four(const uint32_t key[2], int64_t param, int64_t group, double out[4])
{
    const uint32_t counter[4] = {(uint32_t)group, (uint32_t)((uint64_t)group >> 32),
                                 (uint32_t)param, 0};
    uint32_t words[4];
    sw_philox(key, counter, words);
    normal_pair(words[0], words[1], out);
    normal_pair(words[2], words[3], out + 2);
}

void sw_init_fill(const struct sw_model *model, uint64_t seed, int64_t param, int64_t first,
                  int64_t count, float *out)
{
    const struct sw_param *spec = &model->params[param];
    double mean = (double)spec->init_mean;
    double deviation = (double)spec->init_std;
    uint32_t key[2];
    double numbers[4];
    sw_assert(first >= 0 && count >= 0 && first + count <= spec->elements);
    if (deviation == 0.0) {
        for (int64_t i = 0; i < count; i++)
            out[i] = spec->init_mean;
        return;
    }
    sw_random_key(seed, SW_RANDOM_INIT, key);
    for (int64_t i = 0; i < count; i++) {
        int64_t element = first + i;
        if (i == 0 || element % 4 == 0)
            normal_four(key, param, element / 4, numbers);
        out[i] = (float)(mean + deviation * numbers[element % 4]);
    }
}
