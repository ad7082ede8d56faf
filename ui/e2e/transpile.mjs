// TypeScript without its types, by the compiler that checks them.
import ts from "typescript";

export const transpileModule = (source) => ts.transpileModule(source, { compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 } }).outputText;
