#include "comm/grid.h"

#include <stdlib.h>

#include "base/buf.h"

const char *pl_axis_name(pl_axis axis)
{
    static const char *const names[] = {"pp", "dp", "cp", "tp"};
    return names[axis];
}

/* A process's number with its place along `axis` made 0: the same for all that differ along it alone. */
static int color_of(const int sizes[PL_AXIS_COUNT], pl_axis axis, int rank)
{
    int below = 1;
    for (int a = PL_AXIS_COUNT - 1; a > (int)axis; a--) below *= sizes[a];
    return rank - rank / below % sizes[axis] * below;
}

int pl_grid_open(pl_error *err, pl_comm *world, const int sizes[PL_AXIS_COUNT], pl_grid *grid)
{
    int64_t product = 1;
    *grid = (pl_grid){.world = world};
    for (int a = 0; a < PL_AXIS_COUNT; a++) {
        if (sizes[a] < 1) {
            return PL_FAIL(
                err, PL_EUSAGE, "parallel.%s is %d; it must be 1 or more", pl_axis_name((pl_axis)a), sizes[a]);
        }
        product *= sizes[a];
        if (product > world->size) break;
    }
    if (product != world->size) {
        return PL_FAIL(err, PL_EUSAGE, "pp %d x dp %d x cp %d x tp %d is not the number of processes, %d",
            sizes[PL_AXIS_PP], sizes[PL_AXIS_DP], sizes[PL_AXIS_CP], sizes[PL_AXIS_TP], world->size);
    }
    int *colors, rc = 0;
    PL_TRY(pl_calloc(err, (size_t)world->size, sizeof *colors, &colors));
    for (int a = 0; a < PL_AXIS_COUNT && rc == 0; a++) {
        for (int r = 0; r < world->size; r++) colors[r] = color_of(sizes, (pl_axis)a, r);
        rc = pl_comm_split(err, world, colors, &grid->axes[a]);
    }
    free(colors);
    if (rc < 0) pl_grid_close(grid);
    return rc;
}

void pl_grid_close(pl_grid *grid)
{
    for (int a = 0; a < PL_AXIS_COUNT; a++) pl_comm_close(grid->axes[a]);
    *grid = (pl_grid){0};
}
