"""Command lines and what they print. All files are those of bad_files.py; what stands in capitals the test fills in."""

BUILD = [
    ("npu-build good.onnx", "--hw is missing: the machine to build for, one of MACHINES, or a YAML file"),
    ("npu-build missing.onnx --hw edge16", "missing.onnx: no such file or directory"),
    (
        "npu-build cut.onnx --hw edge16",
        ("cut.onnx: is not an ONNX model, or is damaged or cut short\n  help: export or copy the file again"),
    ),
    ("npu-build empty.onnx --hw edge16", "empty.onnx: the file is empty"),
    (
        "npu-build text.onnx --hw edge16",
        ("text.onnx: is not an ONNX model, or is damaged or cut short\n  help: export or copy the file again"),
    ),
    (
        "npu-build good.npz --hw edge16 -o z.npu",
        ("good.npz: is not an ONNX model, or is damaged or cut short\n  help: export or copy the file again"),
    ),
    (
        "npu-build good.npu --hw edge16 -o z.npu",
        "good.npu: is compiled already; npu-sim good.npu runs it, npu-build takes the ONNX model",
    ),
    ("npu-build folder --hw edge16", "folder: is a directory, not an ONNX file"),
    ("npu-build . --hw edge16", ".: is a directory, not an ONNX file"),
    ("npu-build / --hw edge16", "/: is a directory, not an ONNX file"),
    ("npu-build  --hw edge16", ".: is a directory, not an ONNX file"),
    ("npu-build unknown.onnx --hw edge16", "node Frobnicate_1 (Frobnicate): is not an ONNX operator"),
    (
        "npu-build dynamic.onnx --hw edge16",
        (
            'input "x": dimension 2 ("H") is dynamic: [N, 3, H, W]\n'
            "  help: bind it: --shape x=1,3,H,W, with a number in place of H and W"
        ),
    ),
    ("npu-build dynamic.onnx --hw edge16 --shape x=1,3,8", "--shape x=1,3,8: has rank 3, the input has rank 4: [N, 3, H, W]"),
    ("npu-build good.onnx --hw edge16 --shape x", "--shape x: must be NAME=D0,D1,..., for example --shape x=1,3,640,640"),
    (
        "npu-build good.onnx --hw edge16 --shape x=1,3,a,8",
        "--shape x=1,3,a,8: must be NAME=D0,D1,..., for example --shape x=1,3,640,640",
    ),
    (
        "npu-build good.onnx --hw edge16 --shape =1,3,8,8",
        "--shape =1,3,8,8: must be NAME=D0,D1,..., for example --shape x=1,3,640,640",
    ),
    ("npu-build good.onnx --hw edge16 --shape x=1,3,8,8 --shape x=1,3,8,8", "--shape x=1,3,8,8: input 'x' is given twice"),
    (
        "npu-build good.onnx --hw edge16 --shape z=1,3,8,8",
        ('--shape z=1,3,8,8: the model has no input "z"\n  help: its inputs are x'),
    ),
    ("npu-build good.onnx --hw edge16 --shape x=1,3,0,8", "--shape x=1,3,0,8: every dimension must be 1 or more"),
    (
        "npu-build good.onnx --hw edge16 --shape x=1,3,8,99",
        "--shape x=1,3,8,99: dimension 3 is 8 in the model, it cannot become 99: [1, 3, 8, 8]",
    ),
    (
        "npu-build external.onnx --hw edge16",
        (
            'weight w: its external data file "lost.bin" is missing in FOLDER\n'
            "  help: copy it beside the model, or export with the weights inside"
        ),
    ),
    ("npu-build nan.onnx --hw edge16", ("weight w: holds NaN in 108 of its 108 values\n  help: train or export the model again")),
    (
        "npu-build types.onnx --hw edge16",
        'node Add_1 (Add): input 1 "i" is tensor(int64), the inputs before it are tensor(float)',
    ),
    (
        "npu-build good.onnx --hw edge16 --calib missing.npz",
        "missing.npz: no such file or directory; give an .npz, a directory of .npy or images, or file.py:function",
    ),
    (
        "npu-build good.onnx --hw edge16 --calib shape.npz",
        (
            "shape.npz: array for input 'x' has shape [1, 3, 4, 8]; the input takes [1, 3, 8, 8], so it must be "
            "[samples, 3, 8, 8]: resize the samples, or bind other dimensions with --shape"
        ),
    ),
    (
        "npu-build good.onnx --hw edge16 --calib nan.npz",
        "nan.npz: sample 0: input 'x' holds NaN at [0, 1, 2, 3]; calibration needs finite data, remove the sample",
    ),
    (
        "npu-build good.onnx --hw edge16 --calib huge.npz",
        (
            "huge.npz: sample 0: input 'x' holds 1e+300 at [0, 1, 2, 3], which overflows float32; calibration needs finite data, "
            "remove the sample"
        ),
    ),
    (
        "npu-build good.onnx --hw edge16 --calib none.npz",
        "none.npz: no array for input 'x' (arrays: none); save it as numpy.savez(path, **{'x': x})",
    ),
    (
        "npu-build good.onnx --hw edge16 --calib text.npz",
        "text.npz: damaged, or no array file of numpy: File is not a zip file; save it again with numpy.savez",
    ),
    (
        "npu-build good.onnx --hw edge16 --calib cut.npz",
        "cut.npz: damaged, or no array file of numpy: File is not a zip file; save it again with numpy.savez",
    ),
    (
        "npu-build good.onnx --hw edge16 --calib objects.npz",
        "objects.npz: damaged, or no array file of numpy: it holds Python objects; save it again with numpy.savez",
    ),
    (
        "npu-build good.onnx --hw edge16 --calib nothing",
        "nothing: no .npy, .npz or images in this directory; save samples as .npy, or images as .png, .jpg, .jpeg, .bmp",
    ),
    (
        "npu-build good.onnx --hw edge16 --calib mixed",
        (
            "mixed: no .npy, .npz or images in this directory, but 1 other file (.txt); save samples as .npy, or images as .png, "
            ".jpg, .jpeg, .bmp"
        ),
    ),
    (
        "npu-build good.onnx --hw edge16 --calib samples.csv",
        (
            "samples.csv: .csv suffix is no form of calibration data; give an .npz, a directory of .npy or images, or "
            "file.py:function"
        ),
    ),
    ("npu-build good.onnx --hw edge16 --calib feed.py", "feed.py: which function yields the samples? Write feed.py:FUNCTION"),
    (
        "npu-build good.onnx --hw edge16 --calib feed.py:nono",
        "feed.py: no function 'nono' (functions: none, fails); did you mean \"none\"?",
    ),
    ("npu-build good.onnx --hw edge16 --calib feed.py:none", "feed.py:none: yields 0 samples; calibration needs at least 1"),
    (
        "npu-build good.onnx --hw edge16 --calib feed.py:fails",
        "feed.py:fails: sample 0: RuntimeError: no disk (line 6); mend the generator",
    ),
    ("npu-build good.onnx --hw edge16 --quant missing.yaml", "missing.yaml: no such file or directory"),
    ("npu-build good.onnx --hw edge16 --quant good.onnx", "good.onnx:1: not YAML: not UTF-8 text"),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_absent.yaml",
        "parameters_absent.yaml:2: tensors: tensor 'y' of the model has no entry; add it, or calibrate again",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_strange.yaml",
        (
            "parameters_strange.yaml:4: tensors.conv.out: the model has no such tensor; mend or remove its entry\n"
            "parameters_strange.yaml:2: tensors: tensor 'a' of the model has no entry; add it, or calibrate again"
        ),
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_tiny.yaml",
        "parameters_tiny.yaml:3: tensors.x.scale: 1e-30 is below the smallest, 2^-40 (9.1e-13); give one that fits the data, or "
        "low and high",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_vast.yaml",
        "parameters_vast.yaml:3: tensors.x.scale: 1e+308 spreads the codes beyond float32; give one that fits the data, or low "
        "and high",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_double.yaml",
        "parameters_double.yaml:3: tensors.x.low: -1e+300 is beyond float32",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant accumulators.yaml",
        "accumulators.yaml:1: is no parameters file: no version, no tensors; scripts/calibrate.py writes one",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_swapped.yaml",
        "parameters_swapped.yaml:3: tensors.x: low 3.0 is above high -3.0",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_both.yaml",
        "parameters_both.yaml:3: tensors.x: needs low and high, or scale and zero_point, and not both",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_huge.yaml",
        "parameters_huge.yaml:3: tensors.x.low: must be a finite number, got inf",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_words.yaml",
        "parameters_words.yaml:3: tensors.x.low: must be a number, got 'minus three'",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_scale.yaml",
        "parameters_scale.yaml:3: tensors.x.scale: must be more than 0, got 0.0",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_code.yaml",
        "parameters_code.yaml:3: tensors.x.zero_point: 300 is no int8 code; use -128 to 127",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant parameters_version.yaml",
        "parameters_version.yaml:1: version: must be one of 1; got 7",
    ),
    ("npu-build good.onnx --hw edge16 --quant parameters_truth.yaml", "parameters_truth.yaml:1: version: must be 1, got true"),
    (
        "npu-build good.onnx --hw edge16 --skip-pass quantize",
        "--skip-pass quantize: every program needs it; passes that can be skipped are hoist-sums, merge-transposes, fuse-scales, "
        "fuse-tables, fuse-residuals, circular-states",
    ),
    (
        "npu-build good.onnx --hw edge16 --skip-pass nothing",
        "--skip-pass nothing: no such pass; passes that can be skipped are hoist-sums, merge-transposes, fuse-scales, "
        "fuse-tables, fuse-residuals, circular-states",
    ),
    (
        "npu-build good.onnx --hw edge16 --dump-after nothing",
        "--dump-after nothing: no such stage or pass; stages are STAGES, or all; --list-passes lists the passes",
    ),
    (
        "npu-build good.onnx --hw edge16 --dump-after all --dump-dir plain_file",
        "--dump-dir plain_file: plain_file is not a directory",
    ),
    (
        "npu-build good.onnx --hw edge16 --dump-after all --dump-dir plain_file/dumps",
        "--dump-dir plain_file/dumps: FOLDER/plain_file is not a directory",
    ),
    ("npu-build good.onnx --hw edge16 --host gpu", "--host gpu: must be cpu or cuda"),
    (
        "npu-build good.onnx --hw edge16 --host cuda",
        "--host cuda: onnxruntime has no CUDAExecutionProvider here; install onnxruntime-gpu instead (docs/cuda.md), or use cpu",
    ),
    ("npu-build good.onnx --hw edge16 --observer best", "--observer best: must be one of minmax, percentile, mse, auto"),
    (
        "npu-build good.onnx --hw edge16 --samples 2 -o z.npu",
        "--samples 2: goes with --calib DATA; without it the inputs are random",
    ),
    (
        "npu-build good.onnx --hw edge16 --quant good_parameters.yaml --observer mse -o z.npu",
        "--observer mse: --quant good_parameters.yaml holds the ranges already; give one of them",
    ),
    (
        "npu-build good.onnx --hw edge16 --dump-dir dumps",
        "--dump-dir dumps: goes with --dump-after STAGE, which says what to dump",
    ),
    (
        "npu-build good.onnx --hw edge16 --export-nearest",
        "--export-nearest: goes with --export-qdq FILE; it says how layers round there",
    ),
    (
        "npu-build good.onnx --hw edge16 --sram-curve c.png",
        "--sram-curve c.png: is written as SVG; give a name that ends in .svg",
    ),
    ("npu-build good.onnx --hw edge16 --samples 0", "--samples 0: must be 1 or more"),
    ("npu-build good.onnx --hw edge16 -o none/good.npu", "-o none/good.npu: there is no directory none; make it first"),
    ("npu-build good.onnx --hw edge16 -o folder", "-o folder: is a directory, give the name of a file"),
    ("npu-build good.onnx --hw edge16 -o plain_file/good.npu", "-o plain_file/good.npu: plain_file is not a directory"),
    ("npu-build good.onnx --hw edge16 --json none/good.json", "--json none/good.json: there is no directory none; make it first"),
    ("npu-build good.onnx --hw edge16 --json folder", "--json folder: is a directory, give the name of a file"),
    ("npu-build good.onnx --hw edge16 -O9", "-O9: must be -O0, -O1, -O2 or -O3"),
    ("npu-build good.onnx --hw edge16 -Ofast", "-Ofast: must be -O0, -O1, -O2 or -O3"),
]

MACHINES = [
    ("npu-build good.onnx --hw edge61", "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)"),
    ("npu-build good.onnx --hw mine", "no machine named 'mine'; known: MACHINES (or give the path of a YAML file)"),
    ("npu-build good.onnx --hw mine.yaml", "mine.yaml: no such file or directory"),
    ("npu-build good.onnx --hw good.onnx", "good.onnx:1: not YAML: not UTF-8 text"),
    (
        "npu-build good.onnx --hw units.yaml",
        (
            "units.yaml:19: memories.sram.size: '512 kHz' is no quantity; write it as '512 KiB' (units: B, KiB, MiB, "
            "GiB, kB, MB, GB)"
        ),
    ),
    ("npu-build good.onnx --hw key.yaml", 'key.yaml:26: memories.sram.bank: no such key; did you mean "banks"?'),
    ("npu-build good.onnx --hw banks.yaml", "banks.yaml:26: memories.sram.banks: must be at least 1, got 0"),
    (
        "npu-build wide.onnx --hw small.yaml",
        (
            "Conv_0 (Convolution): its smallest tile needs 1088 bytes of SRAM at once, edge16 has 1024 "
            "(memories.sram.size)\n"
            "  live at step 1 of 1, the peak ('|' is the end of the SRAM):\n"
            "    constants       1024 bytes  [######################################|\n"
            "    input x           48 bytes  [                                      |#\n"
            "    output y          16 bytes  [                                      | #\n"
            "  help: the smallest SRAM that would do for the network is 1088 bytes"
        ),
    ),
    (
        "npu-build good.onnx --hw accumulators.yaml",
        "accumulators.yaml:39: engines.mac.accumulators.entries: 8 are fewer than the 256 of a 16 x 16 array (os)",
    ),
    (
        "npu-build good.onnx --hw table.yaml",
        "overlap.yaml:16: operations.copy.fields.source_space.bits: bits [36, 36] overlap channel",
    ),
    (
        "npu-build good.onnx --hw lost.yaml",
        "lost.yaml:87: isa.file: there is no file 'isa/none.yaml' beside this one or among the shipped; "
        "mkdir -p isa && python -m toolchain.isa lost.yaml descriptors -o isa/none.yaml writes a first one",
    ),
    (
        "npu-build good.onnx --hw overlap.yaml",
        "overlap.yaml:1: is an instruction table; give the machine that names it in isa.file",
    ),
    (
        "npu-hw check edge16.yaml",
        "edge16.yaml: no such file or directory; the shipped machine is written without .yaml: edge16",
    ),
    ("npu-hw manual edge16 --c-header --verilog", "--c-header and --verilog: give one of them"),
    ("npu-hw manual edge16 --html --verilog", "--verilog and --html: give one of them"),
    ("npu-hw vectors edge16 --hex --out kit", "--hex: words and memories are what --instructions writes; give both"),
    ("npu-build good.onnx --hw tabs.yaml", "tabs.yaml:2: not YAML: indented with a tab; YAML takes spaces"),
    (
        "npu-hw check units.yaml",
        (
            "units.yaml:19: memories.sram.size: '512 kHz' is no quantity; write it as '512 KiB' (units: B, KiB, MiB, "
            "GiB, kB, MB, GB)"
        ),
    ),
    ("npu-hw check key.yaml", 'key.yaml:26: memories.sram.bank: no such key; did you mean "banks"?'),
    ("npu-hw show edge61", "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)"),
    ("npu-hw diff edge16 edge61", "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)"),
]

RUN = [
    ("npu-sim missing.npu", "missing.npu: no such file or directory"),
    ("npu-sim folder", "folder: is a directory"),
    ("npu-sweep .", ".: is a directory, not a sweep's YAML file"),
    ("npu-sim good.onnx", "good.onnx: not a compiled model (no NPUMODEL at its start); build one with npu-build"),
    (
        "npu-sim good.npu --hw ws8_pow2",
        (
            "good.npu: was built for machine edge16 (digest DIGEST), not for ws8_pow2 (digest DIGEST); build it again "
            "with --hw ws8_pow2"
        ),
    ),
    ("npu-sim good.npu --hw edge61", "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)"),
    ("npu-sim good.npu --base constants", "--base constants: must be NAME=ADDRESS, for example --base constants=0x100000"),
    (
        "npu-sim good.npu --base constants=-64",
        "--base constants=-64: must be NAME=ADDRESS, for example --base constants=0x100000",
    ),
    ("npu-sim good.npu --base constants=64 --base constants=128", "--base constants=128: 'constants' is given twice"),
    (
        "npu-sim good.npu --base constants=0x10000",
        "--base constants=0x10000: programs of edge16 hold absolute addresses; build for a machine with control.host_bases, "
        "base registers that the host sets",
    ),
    (
        "npu-sim good.npu --input missing.npz",
        "missing.npz: no such file or directory; --input takes an .npz with an array for each input",
    ),
    ("npu-sim good.npu --input folder", "folder: is a directory; --input takes an .npz with an array for each input"),
    ("npu-sim good.npu --input shape.npz", "shape.npz: input 'x' has shape [1, 3, 4, 8]; the model takes [1, 3, 8, 8]"),
    (
        "npu-sim good.npu --input type.npz",
        (
            "type.npz: input 'x' is float64; the model takes float32: give x.astype('float32'), nothing is rounded here "
            "where bits are compared"
        ),
    ),
    (
        "npu-sim good.npu --input name.npz",
        (
            "name.npz: input 'x' is missing; give an array of float32 [1, 3, 8, 8]\n"
            "name.npz: there is no input 'input'; the model's inputs are x"
        ),
    ),
    (
        "npu-sim good.npu --input many.npz",
        (
            "many.npz: input 'x' has shape [32, 3, 8, 8]; the model takes [1, 3, 8, 8] at once: give so much of it, "
            "for example x[:1]"
        ),
    ),
    ("npu-sim good.npu --input more.npz", "more.npz: there is no input 'z'; the model's inputs are x"),
    ("npu-sim good.npu --input nan.npz", "nan.npz: input 'x' holds NaN or infinity; codes cannot hold them"),
    ("npu-sim good.npu --input none.npz", "none.npz: input 'x' is missing; give an array of float32 [1, 3, 8, 8]"),
    (
        "npu-sim good.npu --input objects.npz",
        "objects.npz: damaged, or no array file of numpy: it holds Python objects; save it again with numpy.savez",
    ),
    (
        "npu-sim good.npu --input text.npz",
        "text.npz: damaged, or no array file of numpy: File is not a zip file; save it again with numpy.savez",
    ),
    (
        "npu-sim good.npu --input cut.npz",
        "cut.npz: damaged, or no array file of numpy: File is not a zip file; save it again with numpy.savez",
    ),
    (
        "npu-sim good.npu --input array.npy",
        "array.npy: is one array without a name, an .npy; save it with numpy.savez(path, name=array)",
    ),
    (
        "npu-sim good.npu --input array.npz",
        "array.npz: is one array without a name, an .npy; save it with numpy.savez(path, name=array)",
    ),
    ("npu-sim good.npu --host gpu", "--host gpu: must be cpu or cuda"),
    (
        "npu-sim good.npu --host cuda",
        "--host cuda: onnxruntime has no CUDAExecutionProvider here; install onnxruntime-gpu instead (docs/cuda.md), or use cpu",
    ),
    (
        "npu-sim good.npu --backend gpu",
        "--backend gpu: must be one of cuda, reference, simulator; "
        "a package adds one by an entry point of npu_toolchain.backends",
    ),
    ("npu-sim good.npu --out dump", "--out dump: goes with --dump-memory AFTER, which says where to stop"),
    ("npu-sim good.npu --dump-memory 3", "--dump-memory 3: needs --out DIR, a new folder for the memories"),
    (
        "npu-sim good.npu --dump-memory 3 --out dump --verify",
        "--verify: does not go with --dump-memory 3, which stops the program there",
    ),
    (
        "npu-sim good.npu --dump-memory 3 --out dump --output y.npz",
        "--output: does not go with --dump-memory 3, which stops the program there",
    ),
    ("npu-sim good.npu --dump-memory 3 --out plain_file", "--out plain_file: plain_file is not a directory"),
    (
        "npu-sim good.npu --dump-memory last --out dump",
        ("--dump-memory last: must be an operation's index, or end; npu-dis shows indices; SEGMENT:INDEX names the program"),
    ),
    (
        "npu-sim good.npu --dump-memory -1 --out dump",
        "--dump-memory -1: must be an operation's index, or end; npu-dis shows indices; SEGMENT:INDEX names the program",
    ),
    (
        "npu-sim good.npu --dump-memory 99999 --out dump",
        "--dump-memory 99999: there is no operation 99999; the program has 0 to 8",
    ),
    (
        "npu-sim island.npu --dump-memory 3 --out dump",
        "--dump-memory 3: the model has 2 programs; say of which, one of 0:3, 2:3",
    ),
    (
        "npu-sim island.npu --dump-memory 1:3 --out dump",
        "--dump-memory 1:3: segment 1 has no program; those with one are 0, 2",
    ),
    (
        "npu-sim good.npu --dump-memory 3 --out dump --backend reference",
        "backend reference: computes tensors, so that it stops behind no operation; take simulator",
    ),
    ("npu-sim good.npu --output none/out.npz", "--output none/out.npz: there is no directory none; make it first"),
    ("npu-sim good.npu --output folder", "--output folder: is a directory, give the name of a file"),
    ("npu-sim good.npu --json folder", "--json folder: is a directory, give the name of a file"),
    ("npu-sim good.npu --trace none/trace.json", "--trace none/trace.json: there is no directory none; make it first"),
    ("npu-dis good.onnx", "good.onnx: not a compiled model (no NPUMODEL at its start); build one with npu-build"),
    ("npu-dis good.npu -o none/listing.txt", "-o none/listing.txt: there is no directory none; make it first"),
    ("npu-dis good.npu --assemble plain_file", "--assemble writes a compiled model; name it with -o OUT.npu"),
    ("npu-dis good.npu --assemble plain_file -o z.npu", "the listing has 0 programs (lines 'isa NAME'), the model 1"),
    ("npu-dis good.npu --assemble missing.txt -o z.npu", "missing.txt: no such file or directory"),
    ("npu-dis good.npu --assemble good.npz -o z.npu", "good.npz: is no listing, not UTF-8 text"),
]

REFERENCE = [
    ("reference good.onnx --output z.npz", "good.onnx: an ONNX model needs --hw NAME: the machine says what its integers are"),
    (
        "reference good.onnx --hw edge61 --output z.npz",
        "no machine named 'edge61'; did you mean \"edge16\"? (or give the path of a YAML file)",
    ),
    (
        "reference cut.onnx --hw edge16 --output z.npz",
        ("cut.onnx: is not an ONNX model, or is damaged or cut short\n  help: export or copy the file again"),
    ),
    ("reference good.npu --hw edge16 --output z.npz", "--hw: goes with an ONNX model; good.npu is compiled already"),
    (
        "reference good.npu --input name.npz --output z.npz",
        (
            "name.npz: input 'x' is missing; give an array of float32 [1, 3, 8, 8]\n"
            "name.npz: there is no input 'input'; the model's inputs are x"
        ),
    ),
    ("reference good.npu --output none/z.npz", "--output none/z.npz: there is no directory none; make it first"),
    ("reference text.onnx.npu --output z.npz", "text.onnx.npu: no such file or directory"),
    (
        "reference plain_file --output z.npz",
        "plain_file: not a compiled model (no NPUMODEL at its start); build one with npu-build",
    ),
    ("reference good.npu --host gpu --output z.npz", "--host gpu: must be cpu or cuda"),
]
