# SPDX-License-Identifier: Apache-2.0
"""Routes that clients of vLLM, SGLang and SageMaker ask for."""
