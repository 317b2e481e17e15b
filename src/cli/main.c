#include <stdio.h>

int main(void)
{
    fputs("spillway: no commands yet\n", stderr);
    return 2;
}
