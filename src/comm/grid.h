/* The grid: the processes of a run along four axes. Pipeline stages (pp), replicas of the data (dp), parts of a
   sequence (cp) and parts of a matrix (tp), of which the last changes fastest, so that its processes are neighbours. */
#ifndef PL_COMM_GRID_H
#define PL_COMM_GRID_H

#include "comm/comm.h"

typedef enum pl_axis { PL_AXIS_PP, PL_AXIS_DP, PL_AXIS_CP, PL_AXIS_TP, PL_AXIS_COUNT } pl_axis;

typedef struct pl_grid {
    pl_comm *world;               /* borrowed */
    pl_comm *axes[PL_AXIS_COUNT]; /* the processes that differ from this one along that axis alone */
} pl_grid;

const char *pl_axis_name(pl_axis axis); /* "pp" */

/* Collective over world. sizes multiply to its size, else PL_EUSAGE. */
int pl_grid_open(pl_error *err, pl_comm *world, const int sizes[PL_AXIS_COUNT], pl_grid *grid);
void pl_grid_close(pl_grid *grid); /* before the world; {0} is fine */

#endif
