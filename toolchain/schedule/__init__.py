"""Scheduling: the plan of one region, from layers and a machine to tilings, residency, cascades, prefetch and addresses.

A plan is a `RegionPlan` (`plan`); `plan_to_tree` makes a tree of `Seq`, `Loop`, `Alloc` and `Call` (`nodes`) of it.
Its rings and prefetches are nodes of that tree already.
Each idea is in one to three files, to be read in this order:

    text         nodes, text, parser; plan_to_tree adds notes of addresses and cycles; transform changes a tree
    schedules    bind_region, bind_layer, bind_plans: a user's schedule against a region; user_schedule plans by it
    layer        tilings, tile_buffers, sampling
    cascade      stripes, cascade_candidates, cascade; layer_grouping chooses which layers form cascades
    prefetch     layer_constants, prefetch
    residency    layer_by_layer, in_place, all_resident
    placement    plan, allocation, capacity_errors
    cost         cost: one tile; plan_timer, tile_pipeline: many; plan_cost: a plan; queues, dependences: the machine's state
    search       options, region_planner, goals
    layout       views, transposed_views, channel_blocks; copies and lower_moves move boxes
    units        unit_choice, accumulator_memory
"""
