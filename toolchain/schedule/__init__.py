"""Scheduling: the plan of one region, from layers and a machine to tilings, residency, cascades, prefetch and addresses.

A schedule is a tree of nodes: `RegionTree`, `CascadeTree` and `LayerTree` hold `Alloc`, `Loop` and `Call` (`nodes`).
A plan is that tree with what a machine adds to it: `PlannedRegion`, `PlannedCascade`, `PlannedLayer`, `TiledLayer` (`plan`).
Each idea is in one to three files, to be read in this order:

    text         nodes, text, parser; notes tells addresses and cycles of a plan; transform changes a tree
    schedules    bind_region, bind_layer, bind_plans: a user's schedule against a region; user_schedule plans by it
    layer        tilings, tile_buffers, sampling
    cascade      stripes, cascade_candidates, cascade; layer_grouping chooses which layers form cascades
    prefetch     layer_constants, prefetch; hoisted_constants: those that several layers share
    residency    layer_by_layer, in_place, all_resident
    placement    plan, allocation, capacity_errors
    cost         cost: one tile; plan_timer, tile_pipeline: many; plan_cost: a plan; queues, dependences: the machine's state
    search       options, region_planner, goals
    layout       views, transposed_views, channel_blocks; copies and lower_moves move boxes
    units        unit_choice, accumulator_memory
"""
