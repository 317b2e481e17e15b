#include "cli/command.h"

int main(int argc, char **argv)
{
    return sw_main(argc, argv);
}
