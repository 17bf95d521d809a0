"""Command lines of scripts and examples, and what they print. All files are those of bad_files.py."""

EVALUATE = "scripts/evaluate.py good.onnx --hw edge16 --calib good.npz"
CUT = "cut.onnx: is not an ONNX model, or is damaged or cut short\n  help: export or copy the file again"

SCRIPTS = [
    (
        "scripts/calibrate.py weights.onnx --data good.npz -o weights.bin",
        "-o weights.bin: is the same file as the weights of the model; it would be overwritten",
    ),
    (
        "scripts/calibrate.py good.onnx --data samples -o samples/a.npy",
        "-o samples/a.npy: is the same file as a file of --data; it would be overwritten",
    ),
    (
        "scripts/plan_memory.py buffers.csv --capacity 16384 --plot none/p.svg",
        "plan_memory: --plot none/p.svg: there is no directory none; make it first",
    ),
    (
        "scripts/plan_memory.py buffers.csv --capacity 16384 --plot buffers.csv",
        "plan_memory: --plot buffers.csv: is the same file as the buffers; it would be overwritten",
    ),
    (
        f"{EVALUATE} --npz missing.npz",
        "missing.npz: no such file or directory; --npz takes an .npz with arrays x [n, ...] and y [n]",
    ),
    (
        f"{EVALUATE} --npz good.npz",
        "good.npz: no array y (arrays: x); --npz takes samples x [n, ...] and labels y [n]",
    ),
    (
        f"{EVALUATE} --npz none.npz",
        "none.npz: no array x (arrays: none); --npz takes samples x [n, ...] and labels y [n]",
    ),
    (
        f"{EVALUATE} --npz uneven.npz",
        "uneven.npz: x has shape [1, 3, 8, 8], y [2]; give one label a sample, and at least one",
    ),
    (
        f"{EVALUATE} --npz labelled.npz --json none/x.json",
        "--json none/x.json: there is no directory none; make it first",
    ),
    (
        f"{EVALUATE} --npz labelled.npz --json labelled.npz",
        "--json labelled.npz: is the same file as --npz; it would be overwritten",
    ),
    (
        f"{EVALUATE} --npz labelled.npz --shape x=1,a",
        "--shape x=1,a: must be NAME=D0,D1,..., for example --shape x=1,3,640,640",
    ),
    (
        "scripts/evaluate.py good.onnx --hw edge16 --npz labelled.npz",
        "--npz needs --calib DATA: random inputs say nothing about accuracy",
    ),
    ("bench/check_matrix.py missing.onnx", "missing.onnx: no such file or directory"),
    ("bench/check_matrix.py cut.onnx", CUT),
    (
        "bench/check_matrix.py good.onnx --hw edge61",
        "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)",
    ),
    (
        "bench/check_matrix.py good.onnx --hw edge16 --json none/x.json",
        "--json none/x.json: there is no directory none; make it first",
    ),
    (
        "bench/check_matrix.py good.onnx --hw own.yaml --json own.yaml",
        "--json own.yaml: is the same file as --hw; it would be overwritten",
    ),
    ("bench/sweep_timing_terms.py missing.onnx", "missing.onnx: no such file or directory"),
    (
        "bench/sweep_timing_terms.py good.onnx --hw edge61",
        "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)",
    ),
    ("bench/make_bound_tables.py missing.onnx", "missing.onnx: no such file or directory"),
    (
        "bench/make_bound_tables.py good.onnx --sram 64kib",
        "--sram 64kib: '64kib' is no quantity; write it as '512 KiB' (units: B, KiB, MiB, GiB, kB, MB, GB)",
    ),
    (
        "bench/draw_bound_networks.py --hw edge61",
        "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)",
    ),
    (
        "bench/compare_goals.py --hw edge61",
        "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)",
    ),
    ("bench/bench_build.py missing.onnx", "missing.onnx: no such file or directory"),
    ("bench/bench_build.py good.onnx --json folder", "--json folder: is a directory, give the name of a file"),
    (
        "bench/bench_memory.py missing",
        "missing: no such directory; it must hold A..K.1048576.csv of MiniMalloc",
    ),
    (
        "bench/bench_memory.py benchmark",
        "benchmark: lacks C.1048576.csv; copy them there from MiniMalloc's benchmarks",
    ),
    ("bench/bench_fixed_point.py --json none/x.json", "--json none/x.json: there is no directory none; make it first"),
    (
        "bench/bench_simulator.py --hw edge61",
        "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)",
    ),
    ("scripts/demo.py --json none/x.json", "--json none/x.json: there is no directory none; make it first"),
    ("scripts/demo.py --hw own.yaml -o own.yaml", "-o own.yaml: is the same file as --hw; it would be overwritten"),
    (
        "examples/networks/fill_weights.py good.onnx",
        "good.onnx: is a file; DEST is the folder to write 8 networks to",
    ),
    ("examples/compare_machines.py missing.onnx", "missing.onnx: no such file or directory"),
    (
        "examples/compare_machines.py good.onnx --calib missing.npz",
        "missing.npz: no such file or directory; give an .npz, a directory of .npy or images, or file.py:function",
    ),
]

SCRIPT_USAGE = [
    (f"{EVALUATE} --npz labelled.npz -O 9", "argument -O: invalid choice: 9 (choose from 0, 1, 2, 3)"),
    (f"{EVALUATE} --npz labelled.npz --std 0", "argument --std: 0: must be a number other than 0, x is divided by it"),
    (f"{EVALUATE} --npz labelled.npz --std nan", "argument --std: nan: must be a number other than 0, x is divided by it"),
    (f"{EVALUATE} --npz labelled.npz --images 0", "argument --images: 0: must be a whole number, 1 or more"),
    ("bench/check_matrix.py good.onnx -O 9", "argument -O: invalid choice: 9 (choose from 0, 1, 2, 3)"),
    (
        "bench/check_matrix.py good.onnx:x=1,a",
        "argument MODEL.onnx[:NAME=1,3,640,640]: good.onnx:x=1,a: must be MODEL.onnx or MODEL.onnx:NAME=1,3,640,640",
    ),
]
