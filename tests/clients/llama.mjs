// SPDX-License-Identifier: Apache-2.0
//
// llama.cpp as a reader: node llama.mjs FILE says the model's next words in
// one line of JSON, then keeps the model until stdin ends; a line on stdin
// makes it say them again. Without FILE it only sees whether it can load.
import {createInterface} from "node:readline";
import {getLlama, LlamaCompletion} from "node-llama-cpp";

const PROMPT = "The capital of France is";
const TOKENS = 16;

const llama = await getLlama({
	build: "never", gpu: false, logLevel: "error", maxThreads: 2
});
if (process.argv.length > 2) {
	const model = await llama.loadModel({modelPath: process.argv[2]});
	const say = async () => {
		const context = await model.createContext({
			contextSize: 256, threads: 2
		});
		const completion = new LlamaCompletion({
			contextSequence: context.getSequence()
		});
		const text = await completion.generateCompletion(PROMPT, {
			maxTokens: TOKENS, temperature: 0
		});
		await context.dispose();
		console.log(JSON.stringify({text}));
	};
	await say();
	for await (const _ of createInterface({input: process.stdin}))
		await say();
}
process.exit(0);
