"""The names of transformers that this repository and TRL's trainers use, for the type checker alone.

The `__init__` of transformers imports the code of every model, which takes the type checker a fifth of its time.
"""

import transformers.tokenization_utils_base as tokenization_utils_base
from transformers.configuration_utils import PreTrainedConfig as PreTrainedConfig
from transformers.data.data_collator import DataCollator as DataCollator
from transformers.feature_extraction_utils import BatchFeature as BatchFeature
from transformers.generation.configuration_utils import GenerationConfig as GenerationConfig
from transformers.integrations.integration_utils import is_trackio_available as is_trackio_available
from transformers.integrations.integration_utils import is_wandb_available as is_wandb_available
from transformers.modeling_utils import AttentionInterface as AttentionInterface
from transformers.modeling_utils import PreTrainedModel as PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING as CONFIG_MAPPING
from transformers.models.auto.configuration_auto import AutoConfig as AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM as AutoModelForCausalLM
from transformers.models.auto.modeling_auto import AutoModelForImageTextToText as AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    AutoModelForSequenceClassification as AutoModelForSequenceClassification,
)
from transformers.models.auto.processing_auto import AutoProcessor as AutoProcessor
from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
from transformers.models.falcon.configuration_falcon import FalconConfig as FalconConfig
from transformers.models.gemma3.configuration_gemma3 import Gemma3Config as Gemma3Config
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig as Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForCausalLM as Gemma3ForCausalLM
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForConditionalGeneration as Gemma3ForConditionalGeneration
from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig as Gemma3nTextConfig
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig as Gemma4TextConfig
from transformers.models.granite.configuration_granite import GraniteConfig as GraniteConfig
from transformers.models.granite.modeling_granite import GraniteForCausalLM as GraniteForCausalLM
from transformers.models.idefics3.configuration_idefics3 import Idefics3Config as Idefics3Config
from transformers.models.idefics3.modeling_idefics3 import (
    Idefics3ForConditionalGeneration as Idefics3ForConditionalGeneration,
)
from transformers.models.internvl.configuration_internvl import InternVLConfig as InternVLConfig
from transformers.models.internvl.modeling_internvl import (
    InternVLForConditionalGeneration as InternVLForConditionalGeneration,
)
from transformers.models.llama.configuration_llama import LlamaConfig as LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM as LlamaForCausalLM
from transformers.models.llava.configuration_llava import LlavaConfig as LlavaConfig
from transformers.models.llava.modeling_llava import LlavaForConditionalGeneration as LlavaForConditionalGeneration
from transformers.models.mamba2.configuration_mamba2 import Mamba2Config as Mamba2Config
from transformers.models.mistral.configuration_mistral import MistralConfig as MistralConfig
from transformers.models.mistral.modeling_mistral import MistralForCausalLM as MistralForCausalLM
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig as Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLForConditionalGeneration as Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLConfig as Qwen2VLConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import (
    Qwen2VLForConditionalGeneration as Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config as Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM as Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForSequenceClassification as Qwen3ForSequenceClassification
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config as Qwen3_5Config
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5ForConditionalGeneration as Qwen3_5ForConditionalGeneration,
)
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig as Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLForConditionalGeneration as Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeConfig as Qwen3VLMoeConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import (
    Qwen3VLMoeForConditionalGeneration as Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.smollm3.configuration_smollm3 import SmolLM3Config as SmolLM3Config
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMConfig as SmolVLMConfig
from transformers.models.smolvlm.modeling_smolvlm import (
    SmolVLMForConditionalGeneration as SmolVLMForConditionalGeneration,
)
from transformers.processing_utils import ProcessorMixin as ProcessorMixin
from transformers.tokenization_utils_base import PreTrainedTokenizerBase as PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast as PreTrainedTokenizerFast
from transformers.trainer import Trainer as Trainer
from transformers.trainer_callback import PrinterCallback as PrinterCallback
from transformers.trainer_callback import TrainerCallback as TrainerCallback
from transformers.trainer_callback import TrainerControl as TrainerControl
from transformers.trainer_callback import TrainerState as TrainerState
from transformers.trainer_utils import set_seed as set_seed
from transformers.training_args import TrainingArguments as TrainingArguments
from transformers.utils.quantization_config import BitsAndBytesConfig as BitsAndBytesConfig

AddedToken = tokenization_utils_base.AddedToken  # pyright: ignore[reportPrivateImportUsage]
__version__: str
