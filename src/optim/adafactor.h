/* Where Adafactor's factors lie in a unit's state. Not part of the interface. */
#ifndef SPILLWAY_OPTIM_ADAFACTOR_H
#define SPILLWAY_OPTIM_ADAFACTOR_H

#include "optim/optim.h"

/* Each array begins on a multiple of 16 floats: 64 bytes. */
static inline int64_t sw_adafactor_padded(int64_t elements)
{
    return (elements + 15) & ~(int64_t)15;
}

/* Elements of a parameter's states; 0 for a frozen one. */
static inline int64_t sw_adafactor_param_elements(const struct sw_optim_param *param)
{
    if (!param->trainable)
        return 0;
    int64_t columns = sw_adafactor_padded(param->columns);
    return param->factored ? sw_adafactor_padded(param->rows) + columns : columns;
}

/* Element at which the states of parameter `index` begin: row factors first. */
static inline int64_t sw_adafactor_state_offset(const struct sw_optim_unit *unit, int64_t index)
{
    int64_t offset = 0;
    for (int64_t i = 0; i < index; i++)
        offset += sw_adafactor_param_elements(&unit->params[i]);
    return offset;
}

#endif
